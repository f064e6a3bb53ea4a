"""The page over a network that is up, and over a recording, as people use it: by mouse, by keys, on a phone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.api.entry import write_entry
from testbed.api.server import ApiServer
from testbed.emulation import label
from testbed.report.player import RecordedRun
from tests.cli.standing import LAN_S, Standing, up, write
from tests.page.browser import Browser, Tab
from tests.report.runs import build_run

pytestmark = pytest.mark.system

LINK = "quito->lima"
CHOOSE = f"document.querySelector('[data-link=\"{LINK}\"]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    sites = {
        "quito": {"workers": 1, "position": [-0.2, -78.5], "label": "Quito"},
        "lima": {"workers": 1, "position": [-12.0, -77.0]},
        "cuzco": {"workers": 1, "position": [-13.5, -72.0]},
    }
    links = (("quito", "lima", "20mbit", "10ms"), ("lima", "cuzco", "20mbit", "15ms"))
    with up(write(tmp_path_factory.mktemp("page"), "andes", sites, *links), f"t{os.getpid()}-page", "--open") as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that leads to the page of a run that is over."""
    folder = tmp_path_factory.mktemp("recorded")
    run = build_run(folder / "run")
    with ApiServer(RecordedRun(run), folder / "view.sock", 0) as server:
        assert server.port is not None
        yield write_entry(folder, server.port, server.token)


def page(browser: Browser, network: Standing) -> Tab:
    """A tab with the page, by the file that leads there."""
    tab = browser.tab()
    tab.open(f"file://{label.state_folder(network.name) / 'page.html'}")
    tab.until("document.querySelectorAll('#map .link').length === 4")
    return tab


def check_quiet(tab: Tab) -> None:
    """Nothing went wrong in it, and nothing left the machine."""
    assert tab.errors == []
    assert [
        url for url in tab.requests if not re.match(r"(file:///(run|tmp)/|(http|ws)://127\.0\.0\.1:\d+/|data:)", url)
    ] == []
    assert not any("token=" in url.partition("#")[0] for url in tab.requests)


def state_of(link: str) -> str:
    return f"document.querySelector('[data-link=\"{link}\"]').getAttribute('aria-label')"


def test_all_is_there_and_changes_by_anybody_are_shown_and_undone(network: Standing, browser: Browser) -> None:
    one, other = page(browser, network), page(browser, network)
    assert one.value("[...document.querySelectorAll('.site text')].map(text => text.textContent).sort()") == [
        *("Quito (1)", "cuzco (1)", "lima (1)")
    ]
    one.until("document.querySelector('.land').getAttribute('d')")
    assert (
        one.value("location.href").endswith("/")
        and one.value("document.querySelectorAll('#links tbody tr').length") == 4
    )

    one.value(
        f"document.querySelector('[data-link=\"{LINK}\"]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"
    )
    one.value("document.querySelector('[name=delay]').value = '40ms'")
    one.value("document.getElementById('editor').requestSubmit()")
    for tab in (one, other):
        tab.until(f"{state_of(LINK)}.includes('40.0 ms')")
    assert network.round_trip_s("quito-w0", network.address("lima-w0")) >= 0.050 + LAN_S - 0.001
    one.value("document.getElementById('undo').click()")
    for tab in (one, other):
        tab.until(f"{state_of(LINK)}.includes('10.0 ms')")
    assert network.round_trip_s("quito-w0", network.address("lima-w0")) < 0.049

    one.value("document.querySelector('[name=rate]').value = 'fast'")
    one.value("document.getElementById('editor').requestSubmit()")
    one.until("document.getElementById('alert').textContent.includes('is not a quantity')")

    network.verb("link", LINK, "--rate", "5mbit")
    for tab in (one, other):
        tab.until(f"{state_of(LINK)}.includes('5.00 Mbit/s')")
        tab.until("document.getElementById('log').textContent.includes('change quito->lima, by hand')")
    one.value("document.getElementById('restore').click()")
    other.until(f"{state_of(LINK)}.includes('20.0 Mbit/s')")
    one.errors = [error for error in one.errors if "422" not in error]  # the value that was refused
    for tab in (one, other):
        check_quiet(tab)


def test_keys_alone_do(network: Standing, browser: Browser) -> None:
    tab = page(browser, network)
    for _ in range(40):
        tab.press("Tab")
        if tab.value("document.activeElement.dataset.link") == LINK:
            break
    assert tab.value("document.activeElement.dataset.link") == LINK
    tab.press("Enter")
    assert tab.value("document.getElementById('chosen').textContent") == LINK
    for _ in range(40):
        tab.press("Tab")
        if tab.value("document.activeElement.name") == "loss":
            break
    tab.write("1%")
    tab.press("Enter")
    tab.until("document.getElementById('said').textContent.includes('loss 1.00 %')")
    tab.press("Escape")
    tab.until("document.getElementById('editor').hidden")
    tab.value("document.activeElement.blur()")
    tab.press("z", control=True)
    tab.until("[...document.querySelectorAll('#links tbody tr')].every(row => row.cells[3].textContent === '0.00 %')")
    check_quiet(tab)


def test_a_phone_shows_it_without_scrolling_sideways(network: Standing, browser: Browser) -> None:
    tab = page(browser, network)
    tab.resize(360, 740)
    tab.value(
        f"document.querySelector('[data-link=\"{LINK}\"]').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"
    )
    tab.until("!document.getElementById('editor').hidden")
    assert tab.value("document.documentElement.scrollWidth") <= 360
    check_quiet(tab)


def test_one_can_go_back_and_return_to_now(network: Standing, browser: Browser) -> None:
    tab = page(browser, network)
    tab.until("!document.getElementById('player').hidden")
    tab.until(f"{state_of(LINK)}.includes('10.0 ms')")
    tab.until("document.getElementById('scrubber').max - document.getElementById('scrubber').min >= 2")
    network.verb("link", LINK, "--delay", "30ms")
    tab.until(f"{state_of(LINK)}.includes('30.0 ms')")
    tab.value(CHOOSE)
    tab.value("document.getElementById('scrubber').focus()")
    tab.press("Home")
    tab.until(f"{state_of(LINK)}.includes('10.0 ms')")
    assert tab.value("document.getElementById('apply').disabled"), "what was cannot be changed"
    network.verb("link", LINK, "--delay", "35ms")
    until_now = tab.value("Number(document.getElementById('scrubber').max)")
    tab.until(f"document.getElementById('scrubber').max > {until_now} + 1")
    assert tab.value(f"{state_of(LINK)}.includes('10.0 ms')"), "it stays there"
    tab.value("document.getElementById('now').click()")
    tab.until(f"{state_of(LINK)}.includes('35.0 ms')")
    assert not tab.value("document.getElementById('apply').disabled")
    tab.value("document.getElementById('restore').click()")
    tab.until(f"{state_of(LINK)}.includes('10.0 ms')")
    check_quiet(tab)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_out(network: Standing, browser: Browser, scheme: str) -> None:
    tab = page(browser, network)
    tab.prefer(scheme)
    tab.value(CHOOSE)
    tab.until("!document.getElementById('editor').hidden")
    assert tab.violations() == []
    check_quiet(tab)


def test_a_worker_is_added_at_a_site(network: Standing, browser: Browser) -> None:
    tab = page(browser, network)
    tab.until("document.querySelectorAll('#site option').length === 3")
    tab.value("document.getElementById('site').value = 'lima'")
    tab.value("document.getElementById('add-form').requestSubmit()")
    tab.until("document.getElementById('workers').textContent.includes('lima-w1')")
    tab.until("[...document.querySelectorAll('.site text')].some(text => text.textContent === 'lima (2)')")
    tab.until("document.getElementById('log').textContent.includes('add lima-w1, by hand')")
    assert tab.value("document.getElementById('site').value") == "lima"
    assert network.round_trip_s("quito-w0", network.address("lima-w1")) < 0.049
    check_quiet(tab)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_recording_is_played_and_moved_through(recording: Path, browser: Browser, scheme: str) -> None:
    tab = browser.tab()
    tab.prefer(scheme)
    tab.open(f"file://{recording}")
    tab.until("document.querySelectorAll('#map .link').length && document.querySelectorAll('#log li').length")
    assert tab.violations() == []
    last = tab.value("document.getElementById('moment').textContent")
    tab.value("document.getElementById('scrubber').focus()")
    tab.press("Home")
    tab.until("document.getElementById('moment').textContent.startsWith('0.0 s')")
    tab.value("document.getElementById('speed').value = 64")
    tab.value("document.getElementById('play').focus()")
    tab.press("Enter")
    tab.until(f"document.getElementById('moment').textContent === {json.dumps(last)}")
    tab.until("document.getElementById('log').textContent.includes('swap quickstart-uplink')")
    tab.resize(360, 740)
    assert tab.value("document.documentElement.scrollWidth") <= 360
    check_quiet(tab)


def test_without_the_token_the_page_says_how_to_get_in(network: Standing, browser: Browser) -> None:
    found = re.search(r"http://127\.0\.0\.1:\d+/", (label.state_folder(network.name) / "page.html").read_text())
    assert found
    tab = browser.tab()
    tab.open(found[0])
    tab.until("document.getElementById('alert')?.textContent.includes('open the link to the page anew')")
