"""The page over a network that is up, and over a recording, used by mouse, by keys and on a phone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from testbed.api.entry import write_entry
from testbed.api.server import ApiServer
from testbed.emulation import label
from testbed.report.page import write_report
from testbed.report.recording import RecordedRun
from testbed.spec.topology import Topology
from tests.api.network import answering
from tests.cli.standing import LAN_S, Standing, up, write
from tests.emulation.recorder import Recorder
from tests.page.browser import Browser, Tab
from tests.page.pictures import SHEET, WIDTHS, report_tab
from tests.report.runs import DROP_S, ZERO_S, build_run
from tests.spec.files import TOPOLOGY

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
    """Return the file that leads to the page of a finished run."""
    folder = tmp_path_factory.mktemp("recorded")
    run = build_run(folder / "run")
    values = {"rate_bps": 5e6, "delay_s": None, "jitter_s": None, "loss": None}
    change = {"kind": "change", "target": "london->madrid", "by": "hand", "changed": values}
    before, *after = (run / "events.jsonl").read_text().splitlines()
    lines = [json.dumps({"at_s": ZERO_S + 50, **change}), before, *after]
    (run / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    first, *others = (run / "decisions.jsonl").read_text().splitlines()
    early = json.dumps(json.loads(first) | {"at_s": ZERO_S - 3.2, "adopted": True, "epoch": 0})
    (run / "decisions.jsonl").write_text("".join(f"{line}\n" for line in [early, *others]))
    with ApiServer(RecordedRun(run), folder / "view.sock", 0) as server:
        assert server.port is not None
        yield write_entry(folder, server.port, server.token)


def page(browser: Browser, network: Standing) -> Tab:
    """Open a tab with the page, by the file that leads there."""
    return opened(browser.tab(), network)


def opened(tab: Tab, network: Standing) -> Tab:
    tab.open(f"file://{label.state_folder(network.name) / 'page.html'}")
    tab.until("document.querySelectorAll('#map .link').length === 4")
    return tab


def check_quiet(tab: Tab) -> None:
    """Assert that the page logged no error, and sent no request beyond this machine."""
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
    one.until("!document.getElementById('undo').disabled")
    one.value("document.getElementById('undo').click()")
    for tab in (one, other):
        tab.until(f"{state_of(LINK)}.includes('10.0 ms')")
    assert network.round_trip_s("quito-w0", network.address("lima-w0")) < 0.049

    one.value("document.querySelector('[name=rate]').value = 'fast'")
    one.value("document.getElementById('editor').requestSubmit()")
    one.until("document.getElementById('alert').textContent.includes('is not a quantity')")

    network.verb("link set", LINK, "--rate", "5mbit")
    for tab in (one, other):
        tab.until(f"{state_of(LINK)}.includes('5.00 Mbit/s')")
        tab.until("document.getElementById('log').textContent.includes('change quito->lima, by hand')")
    one.value("document.getElementById('restore').click()")
    other.until(f"{state_of(LINK)}.includes('20.0 Mbit/s')")
    one.errors = [error for error in one.errors if "422" not in error]  # the value that was refused
    for tab in (one, other):
        check_quiet(tab)


def test_an_open_page_changes_to_the_next_run_of_its_command(browser: Browser, tmp_path: Path) -> None:
    """A sweep serves its runs one after another, at one port and with one token."""
    topologies, lost = [], "document.getElementById('alert').textContent.includes('Trying again')"
    for name in ("first", "second"):
        (file := tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(TOPOLOGY | {"name": name}))
        topologies.append(Topology.load(file))
    with answering(topologies[0], tmp_path / "first.sock", 0) as (_, server):
        assert server.port is not None
        tab = browser.tab()
        tab.open(f"file://{write_entry(tmp_path, server.port, server.token)}")
        tab.until("document.querySelector('#map .link') && (window.seen = true)")
    tab.until(lost)
    with answering(topologies[1], tmp_path / "second.sock", server.port, server.token):
        tab.until("!window.seen && document.querySelector('#map .link')")
        assert tab.value("document.getElementById('alert').textContent") == ""
        tab.value("window.seen = true")
    tab.until(lost)
    with answering(topologies[1], tmp_path / "third.sock", server.port, server.token):
        tab.until("document.getElementById('alert').textContent === ''")
        assert tab.value("window.seen"), "the same network again is no other run"


def test_an_alert_has_a_failure_while_it_lasts_and_the_answer_to_a_request(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure: list[str | None] = ["the shaper has ended"]
    monkeypatch.setattr(Recorder, "failure", lambda _: failure[0])
    two = {"name": "two", "sites": {"a": {"workers": 1}, "b": {"workers": 1}}}
    links = [{"between": ["a", "b"], "rate": "20mbit", "delay": "10ms"}]
    (file := tmp_path / "two.yaml").write_text(yaml.safe_dump(two | {"links": links}))
    alert = "document.getElementById('alert').textContent"
    with answering(Topology.load(file), tmp_path / "two.sock", 0) as (_, server):
        assert server.port is not None
        tab = browser.tab()
        tab.open(f"file://{write_entry(tmp_path, server.port, server.token)}")
        tab.until(f"document.querySelectorAll('#map .link').length === 2 && {alert} === 'the shaper has ended'")
        choose(tab, "a->b")
        tab.value("document.querySelector('[name=rate]').value = 'fast'")
        tab.value("document.getElementById('editor').requestSubmit()")
        tab.until(f"{alert}.includes('is not a quantity') && {alert}.includes('the shaper has ended')")
        failure[0] = None
        tab.until(f"!{alert}.includes('the shaper has ended')")
        assert "is not a quantity" in tab.value(alert)


def test_a_link_s_queue_and_background_traffic_are_shown(browser: Browser, tmp_path: Path) -> None:
    queue = {"limit": "100KB", "discipline": "codel", "target": "4ms", "interval": "80ms"}
    traffic = [
        {"link": "a->b", "on_off": {"rate": "30%", "busy": "2s", "idle": "1s"}},
        {"link": "a->b", "poisson": {"rate": "1mbit", "size": "200KB", "every": "5s"}},
    ]
    back = {"queue": {"limit": "50KB", "discipline": "red", "min": "10%", "max": "30%", "probability": "2%"}}
    links = [{"between": ["a", "b"], "rate": "20mbit", "delay": "10ms", "queue": queue, "backward": back}]
    two = {"name": "two", "sites": {"a": {"workers": 1}, "b": {"workers": 1}}, "links": links, "traffic": traffic}
    (file := tmp_path / "two.yaml").write_text(yaml.safe_dump(two))
    with answering(Topology.load(file), tmp_path / "two.sock", 0) as (_, server):
        assert server.port is not None
        tab = browser.tab()
        tab.open(f"file://{write_entry(tmp_path, server.port, server.token)}")
        tab.until("document.querySelectorAll('#map .link').length === 2")
        said = choose(tab, "a->b")
        assert "by its trace or background traffic" in said
        assert "100 kB, codel: target 4.00 ms, interval 80.0 ms" in said
        assert "on_off: rate 30.0 %, busy 2.00 s, idle 1.00 s" in said
        assert "poisson: rate 1.00 Mbit/s, size 200 kB, every 5.00 s" in said
        back_said = choose(tab, "b->a")
        assert "50.0 kB, red: min 10.0 %, max 30.0 %, probability 2.00 %" in back_said and "background" not in back_said
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
    tab.until("!document.getElementById('undo').disabled")  # from the answer on; the new state may come before it
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
    network.verb("link set", LINK, "--delay", "30ms")
    tab.until(f"{state_of(LINK)}.includes('30.0 ms')")
    tab.value(CHOOSE)
    tab.value("document.getElementById('scrubber').focus()")
    tab.press("Home")
    tab.until(f"{state_of(LINK)}.includes('10.0 ms')")
    assert tab.value("document.getElementById('apply').disabled"), "what was cannot be changed"
    network.verb("link set", LINK, "--delay", "35ms")
    until_now = tab.value("Number(document.getElementById('scrubber').max)")
    tab.until(f"document.getElementById('scrubber').max > {until_now} + 1")
    assert tab.value(f"{state_of(LINK)}.includes('10.0 ms')"), "it stays there"
    tab.value("document.getElementById('now').click()")
    tab.until(f"{state_of(LINK)}.includes('35.0 ms')")
    assert not tab.value("document.getElementById('apply').disabled")
    tab.value("document.getElementById('restore').click()")
    tab.until(f"{state_of(LINK)}.includes('10.0 ms')")
    check_quiet(tab)


def test_times_are_the_server_s_in_a_browser_whose_clock_is_an_hour_behind(network: Standing, browser: Browser) -> None:
    tab = browser.tab()
    behind = "{ const now = Date.now; Date.now = () => now() - 3_600_000; }"
    tab.do("Page.addScriptToEvaluateOnNewDocument", source=behind)
    opened(tab, network)
    network.verb("link set", LINK, "--delay", "12ms")
    tab.until("document.getElementById('log').textContent.includes('change quito->lima')")
    when = "parseFloat(document.querySelector('#log .when').textContent)"
    tab.until(f"document.getElementById('scrubber').max >= {when}")
    tab.value(CHOOSE)
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


def recorded_page(browser: Browser, recording: Path) -> Tab:
    tab = browser.tab()
    tab.open(f"file://{recording}")
    tab.until("document.querySelectorAll('#map .link').length && document.querySelectorAll('#log li').length")
    return tab


def move_to(tab: Tab, seconds: float) -> None:
    tab.value(f"""{{
      const scrubber = document.getElementById("scrubber");
      scrubber.value = {seconds};
      scrubber.dispatchEvent(new Event("input"));
    }}""")


def choose(tab: Tab, link: str) -> str:
    """Choose a link, and return the page's text about it."""
    tab.value(f"document.querySelector('[data-link=\"{link}\"]').dispatchEvent(new MouseEvent('click'))")
    return str(tab.until(f"document.getElementById('chosen').textContent === '{link}' && {SAID}"))


SAID = "document.getElementById('said').textContent"


def test_a_run_that_is_over_offers_no_inputs_and_says_what_was_changed_by_hand(
    recording: Path, browser: Browser
) -> None:
    tab = recorded_page(browser, recording)
    inputs = "[...document.querySelectorAll('form input, form button, #stop, #undo, #pause')]"
    move_to(tab, 40)
    assert "by hand" not in choose(tab, "london->madrid")
    assert tab.value(f"{inputs}.filter(one => one.checkVisibility()).length") == 0
    assert not tab.value("document.getElementById('can-change').checkVisibility()")
    move_to(tab, 60)
    said = tab.until(f"{SAID}.includes('by hand') && {SAID}")
    assert "by hand: rate" in said
    assert "trace" not in said, "the record does not say whether it had one"
    tab.until("[...document.querySelectorAll('#links button')].some(one => one.title.includes('changed by hand'))")
    check_quiet(tab)


def test_the_drop_of_a_trace_is_on_the_time_line_and_in_the_log(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    tab.until("document.querySelectorAll('#timeline .event.step').length >= 2")
    titles = tab.value("[...document.querySelectorAll('#timeline .step title')].map(one => one.textContent)")
    drop = next(title for title in titles if "drop london-washington" in title)
    assert DROP_S - 2 <= float(drop.split(" s:")[0]) <= DROP_S + 2
    assert "Mbit/s" in drop
    tab.until("document.getElementById('log').textContent.includes('drop london-washington')")
    check_quiet(tab)


def test_nothing_is_decided_before_0(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    moments = tab.value("[...document.querySelectorAll('#decisions .when')].map(one => one.textContent)")
    assert moments[-1] == "0.0 s"
    assert not any(moment.startswith("-") for moment in moments)


def test_what_is_planned_counts_both_directions_of_a_tree(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    tree = {"root": "a-w0", "reduce": {"b-w0": "a-w0"}, "broadcast": {"b-w0": "a-w0"}, "share": 1}
    state = {"plans": {"0": {"plan": {"trees": [tree]}, "swap": None}}}
    asked = f"import('/page/state.js').then(state => state.plannedOver({json.dumps(state)}, LINK))"
    assert tab.value(asked.replace("LINK", "'b->a'")) == ["1 edge to a-w0"]
    assert tab.value(asked.replace("LINK", "'a->b'")) == ["1 edge from a-w0"]
    assert tab.value(asked.replace("LINK", "'a->c'")) == []
    assert "1 edge from washington-w0" in choose(tab, "washington->london")
    check_quiet(tab)


def imported(tab: Tab, module: str, asked: str) -> object:
    """Return what a function of `page`, one of the page's modules, returns in the tab."""
    return tab.value(f"import('/page/{module}').then(page => ({asked}))")


def test_sites_near_each_other_are_drawn_in_the_middle_of_the_map(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    towns = {"amsterdam": [52.4, 4.9], "rotterdam": [51.9, 4.5]}
    for names in (["amsterdam", "rotterdam"], ["amsterdam"]):
        state = {"sites": {name: {"position": towns[name]} for name in names}, "links": {}}
        asked = f"[...page.placesOf({json.dumps(state)}, {json.dumps(names)}, 700, 576).places.values()]"
        places = imported(tab, "places.js", asked)
        assert isinstance(places, list) and len(places) == len(names)
        assert all(isinstance(x, int | float) and 0 < x < 700 and 0 < y < 576 for x, y in places), places


def test_a_member_has_no_time_in_a_round_without_it(recording: Path, browser: Browser) -> None:
    """As one that an elastic run lost."""
    tab = recorded_page(browser, recording)
    host = {"kind": "worker", "site": "a", "address": ""}
    part = {"compute_s": 1, "wait_s": 2, "send_s": 3}
    bars = []
    for parts in ({"a-w0": part, "a-w1": part}, {"a-w0": part}):
        state = {"network": {}, "hosts": {"a-w0": host, "a-w1": host}, "training": {"workers": parts}}
        counted = "document.querySelectorAll('#workers .bar[role=img][title]').length"
        bars.append(imported(tab, "told.js", f"(page.tell({json.dumps(state)}, 0), {counted})"))
    assert bars == [2, 1]


def test_only_a_trusted_run_has_the_colour_of_one(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    colours = {}
    for verdict in ("trusted", "suspect", "simulated", "unfinished"):
        state = {"network": {}, "verdict": {"verdict": verdict, "reasons": []}}
        shown = "getComputedStyle(document.querySelector('#verdict strong')).color"
        colours[verdict] = imported(tab, "told.js", f"(page.tell({json.dumps(state)}, 0), {shown})")
    trusted = colours.pop("trusted")
    assert trusted not in colours.values()
    assert len(set(colours.values())) == 1


def test_what_came_of_a_decision_is_measured_while_its_plan_was_in_force(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    epochs = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    seconds = [9.0, 1.0, 2.0]  # by epoch
    at_s = 0.0
    rounds: list[dict[str, float]] = []
    for number, epoch in enumerate(epochs):
        at_s += seconds[epoch]
        rounds.append({"round": number, "epoch": epoch, "finished_s": at_s, "seconds": seconds[epoch]})
    decisions = [
        {"at_s": float(epoch), "policy": "mst", "adopted": True, "why": "", "epoch": epoch, "proposed_s": None}
        for epoch in (1, 2)
    ]
    state = {"network": {}, "rounds": rounds, "decisions": decisions}
    shown = "[...document.querySelectorAll('#decisions .more')].map(one => one.textContent)"
    assert imported(tab, "told.js", f"(page.tell({json.dumps(state)}, 0), {shown})") == [
        "measured 2.00 s, before 1.00 s",
        "measured 1.00 s, before 9.00 s",
    ]


def test_a_prediction_by_a_policy_s_own_measure_is_no_time_of_rounds(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    predicted = {"epoch": 1, "proposed_s": 0.052, "current_s": 0.061}
    decision = {"at_s": 0.0, "policy": "cpn", "adopted": True, "why": "", **predicted}
    shown = "document.querySelector('#decisions .more').textContent"
    said = []
    for own in (False, True):
        state = {"network": {}, "rounds": [], "decisions": [{**decision, "own_measure": own}]}
        said.append(imported(tab, "told.js", f"(page.tell({json.dumps(state)}, 0), {shown})"))
    assert said == [
        "predicted 52.0 ms per whole round instead of 61.0 ms",
        "predicted 0.052 instead of 0.061 by the policy's own measure",
    ]


def test_figures_of_a_chart_have_three_digits(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    values = [0.968, 0.0312, 2.347, 1234.6, 123456, -0.25, 0]
    assert imported(tab, "charts.js", f"{values}.map(page.figure)") == [
        *("0.968", "0.0312", "2.35", "1235", "123456", "-0.25", "0")
    ]


def test_a_long_training_has_the_curve_of_what_few_rounds_report(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    rounds = "Array.from({length: 4001}, (_, n) => ({metrics: {loss: 1, ...n % 10 === 9 ? {accuracy: 0.5} : {}}}))"
    with_accuracy = "page.withValues(rounds, ['loss', 'accuracy']).filter(round => round.metrics.accuracy)"
    assert imported(tab, "charts.js", f"(rounds => {with_accuracy}.length)({rounds})") == 400
    assert imported(tab, "charts.js", f"page.withValues({rounds}, ['loss']).length") == 1334


def test_the_rounds_of_a_command_have_no_known_end(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    network = {"kind": "run", "name": "two", "topology": "two", "backend": "netem", "replay": {"paused": False}}
    shown = "[...document.querySelectorAll('#figures > div')].map(one => one.textContent)"
    for rounds, said in ((None, "round12"), (180, "round12 of 180")):
        state = {"network": network, "hosts": {}, "training": {"round": 12, "rounds": rounds, "metrics": {}}}
        figures = imported(tab, "facts.js", f"(page.tellFacts({json.dumps(state)}, 1), {shown})")
        assert isinstance(figures, list) and said in figures


def test_the_page_s_times_count_pauses_of_the_traces(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    kinds = (("pause", 1010), ("resume", 1030), ("pause", 1040), ("pause", 1041))
    events = [{"kind": kind, "at_s": at_s} for kind, at_s in kinds]
    for known, elapsed_s in ((4, 20.0), (2, 80.0), (1, 10.0), (0, 100.0)):
        state = {"network": {"replay": {"elapsed_s": elapsed_s}}, "events": events[:known]}
        assert imported(tab, "state.js", f"page.beginOf({json.dumps(state)}, 1100)") == 1000


def test_links_of_sites_that_a_swap_is_about_to_add_need_no_place(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    links = {f"{a}->{b}": {"source": a, "target": b, "delay_s": 0.01} for a, b in (("a", "b"), ("b", "new"))}
    state = {"sites": {"a": {}, "b": {}}, "links": links}
    asked = f"[...page.placesOf({json.dumps(state)}, ['a', 'b'], 700, 576).places.keys()]"
    assert imported(tab, "places.js", asked) == ["a", "b"]


def test_short_times_are_in_milliseconds(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    said = ["0.00 s", "4.00 ms", "52.3 ms", "0.10 s", "12.30 s", "–"]
    assert imported(tab, "units.js", "[0, 0.004, 0.0523, 0.1, 12.3, null].map(page.seconds)") == said


def test_a_controller_alone_has_no_figure_of_traffic(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    link = {"source": "a", "target": "b", "up": True}
    shown = "document.getElementById('figures').textContent.includes('traffic')"
    for links in (dict[str, object](), {"a->b": link}):
        network = {"kind": "controller", "name": "run", "replay": {"paused": False}}
        state = {"network": network, "hosts": {}, "links": links, "training": {"round": 12, "metrics": {}}}
        assert imported(tab, "facts.js", f"(page.tellFacts({json.dumps(state)}, 1), {shown})") == bool(links)


def test_a_recording_is_not_said_to_have_finished(recording: Path, browser: Browser) -> None:
    """The run may have been interrupted: its verdict says so."""
    tab = recorded_page(browser, recording)
    shown = tab.value("document.getElementById('facts').textContent")
    assert "recorded" in shown and "finished" not in shown


def test_the_first_plan_has_its_number_apart_from_its_policy(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    network = {"kind": "run", "name": "two", "topology": "two", "backend": "netem", "replay": {"paused": False}}
    training = {"round": 1, "rounds": 9, "metrics": {}, "policy": "mst"}
    plans = {"0": {"plan": {"policy": "mst", "trees": []}, "swap": None}}
    state = {"network": network, "hosts": {}, "training": training, "plans": plans}
    shown = "[...document.querySelectorAll('#figures > div')].map(one => one.textContent)"
    figures = imported(tab, "facts.js", f"(page.tellFacts({json.dumps(state)}, 1), {shown})")
    assert isinstance(figures, list) and "planmst 0" in figures


def test_no_screen_reader_reads_the_time_as_it_goes_on(recording: Path, browser: Browser) -> None:
    """An output is a live region by itself, and the scrubber has the moment as its value."""
    tab = recorded_page(browser, recording)
    moment, scrubber = "document.getElementById('moment')", "document.getElementById('scrubber')"
    assert tab.value(f"{moment}.getAttribute('aria-live')") == "off"
    assert tab.value(f"{scrubber}.getAttribute('aria-valuetext') === {moment}.textContent")


def test_a_small_loss_has_three_figures(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    said = ["2.303", "0.250", "0.0312", "0.000210", "0.000", "–"]
    assert imported(tab, "units.js", "[2.3026, 0.25, 0.0312, 0.00021, 0, null].map(page.loss)") == said


def test_large_rates_are_whole_numbers(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    assert imported(tab, "units.js", "[1e9, 1.5e9, 20e6].map(page.mbit)") == ["1000", "1500", "20.0"]
    assert imported(tab, "units.js", "[2e12, 999999].map(page.rate)") == ["2000 Gbit/s", "1.00 Mbit/s"]


def test_traffic_of_a_removed_link_and_of_a_later_moment_does_not_count(recording: Path, browser: Browser) -> None:
    tab = recorded_page(browser, recording)
    counts = ["page.count({x: {bytes: 0}}, 0)", "page.count({x: {bytes: 1e6}}, 1)"]
    for then in ("page.count({}, 2)", "page.count({x: {bytes: 0}}, 3)"):
        asked = f"[{', '.join([*counts, then])}, page.carried('x') ?? null].at(-1)"
        assert imported(tab, "use.js", asked) is None
    assert imported(tab, "use.js", f"[{', '.join(counts)}, page.carried('x')].at(-1)") == 8e6


@pytest.mark.parametrize("width", [360, 1000, 1280, 1600])
def test_no_figure_runs_over_its_tile(recording: Path, browser: Browser, width: int) -> None:
    tab = recorded_page(browser, recording)
    tab.resize(width, 1000)
    over = "[...document.querySelectorAll('#figures dd')].filter(one => one.scrollWidth > one.clientWidth + 1)"
    assert tab.value(f"{over}.map(one => one.textContent)") == []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run with its report."""
    run = build_run(tmp_path_factory.mktemp("reported") / "run")
    write_report(run)
    return run


#: Names in a figure that cover a part of one another, and those that reach out of it. Slanted ones have boxes that are
#: larger than they are.
HIDDEN = """
[...document.querySelectorAll("svg.figure")].flatMap(figure => {
  const names = [...figure.querySelectorAll("text")].filter(one => one.textContent.trim())
    .filter(one => !/rotate\\((?!-?0|-90)/.test(one.getAttribute("transform") ?? ""));
  const boxes = names.map(one => [one.textContent.trim(), one.getBoundingClientRect()]);
  const all = figure.getBoundingClientRect();
  const out = boxes.filter(([, box]) => box.left < all.left - 2 || box.right > all.right + 2 || box.top < all.top - 2);
  const covered = boxes.flatMap(([name, box], place) => boxes.slice(place + 1).filter(([, other]) => {
    const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
    const up = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
    return across > 2 && up > 0.35 * Math.min(box.height, other.height);
  }).map(([other]) => `${figure.getAttribute("aria-label")}: ${name} and ${other}`));
  return [...out.map(([name]) => `out: ${name}`), ...covered];
})
"""


@pytest.mark.parametrize("width", [*WIDTHS, None])
def test_nothing_of_a_report_hides_anything_on_a_screen_or_in_print(
    report: Path, browser: Browser, width: int | None
) -> None:
    tab = report_tab(browser, report, SHEET if width is None else width)
    if width is None:
        tab.show_as_print()
    tiles = "[...document.querySelectorAll('.key dt, .key dd, .opening p')]"
    assert tab.value(f"{tiles}.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)") == []
    assert tab.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.value(HIDDEN) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_keeps_nobody_out(report: Path, browser: Browser, scheme: str) -> None:
    tab = report_tab(browser, report, WIDTHS[0])
    tab.prefer(scheme)
    assert tab.violations() == []


def test_a_report_answers_on_the_first_screen(report: Path, browser: Browser) -> None:
    tab = report_tab(browser, report, WIDTHS[1], 800)
    bottom = tab.value("document.querySelector('.opening').getBoundingClientRect().bottom")
    assert bottom < 800


def test_a_network_that_is_gone_offers_no_inputs(tmp_path: Path, browser: Browser) -> None:
    sites = {"quito": {"workers": 1}, "lima": {"workers": 1}}
    file = write(tmp_path, "gone", sites, ("quito", "lima", "20mbit", "10ms"))
    with up(file, f"t{os.getpid()}-gone", "--open") as made:
        tab = browser.tab()
        tab.open(f"file://{label.state_folder(made.name) / 'page.html'}")
        tab.until("document.querySelectorAll('#map .link').length === 2")
        tab.value(CHOOSE)
        tab.until("document.getElementById('apply').checkVisibility()")
    tab.until("document.getElementById('alert').textContent.includes('testbed view')")
    tab.until("!document.getElementById('apply').checkVisibility()")
    assert not tab.value("document.getElementById('stop').checkVisibility()")


def test_without_the_token_the_page_says_how_to_get_in(network: Standing, browser: Browser) -> None:
    found = re.search(r"http://127\.0\.0\.1:\d+/", (label.state_folder(network.name) / "page.html").read_text())
    assert found
    tab = browser.tab()
    tab.open(found[0])
    tab.until("document.getElementById('alert')?.textContent.includes('open the link to the page again')")
    entry = (label.state_folder(network.name) / "page.html").read_text()
    token = re.search(r"#token=[\w-]+", entry)
    assert token
    tab.value(f"location.hash = {json.dumps(token[0])}")
    tab.until("document.querySelectorAll('[data-link]').length > 0 && location.hash === ''")
