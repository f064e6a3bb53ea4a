"""How large TCP's buffers are made, and that one flow then has more on its way than Linux's own would hold."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.network.node import NamespaceHost
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.transport import (
    MOST_BYTES,
    RECEIVED_LEAST,
    SENT_LEAST,
    Reach,
    Transport,
    largest_bdp,
    settings_for,
)
from testbed.link import link_name
from testbed.spec.event import LinkChange
from testbed.spec.topology import Topology
from testbed.trace.trace import Row, Trace
from tests.emulation.network.test_routing import networks
from tests.emulation.network.wan import Wan, up
from tests.waiting import PATIENCE_S, until

WMEM, RMEM = "net.ipv4.tcp_wmem", "net.ipv4.tcp_rmem"

#: 3.8 MB on the longest path.
LONG = "140mbit", "109ms"


def row(*links: tuple[str, str], middle_workers: int = 0) -> Topology:
    """Sites a, b, c, … in a row, by rate and delay; those between the ends may be without workers."""
    sites = "abcdef"[: len(links) + 1]
    workers = {site: 1 if site in (sites[0], sites[-1]) else middle_workers for site in sites}
    value = {
        "name": "row",
        "sites": {site: {"workers": count} for site, count in workers.items()},
        "links": [
            {"between": [a, b], "rate": rate, "delay": delay}
            for (a, b), (rate, delay) in zip(pairwise(sites), links, strict=True)
        ],
        "lan": {"rate": "1gbit", "delay": "0ms"},
    }
    return Topology.from_value(value, Path("row.yaml"))


def bdp_of(topology: Topology) -> float:
    return largest_bdp(topology, Routes.over(topology), {name: Reach.of(link) for name, link in topology.links.items()})


def most(setting: str) -> int:
    return int(setting.split()[-1])


@pytest.mark.pure
def test_a_path_is_as_wide_as_its_narrowest_link_and_as_long_as_all() -> None:
    assert bdp_of(row(LONG)) == pytest.approx(140e6 / 8 * 0.218)
    assert bdp_of(row(("200mbit", "10ms"), ("50mbit", "100ms"))) == pytest.approx(50e6 / 8 * 0.220)


@pytest.mark.pure
def test_only_paths_between_workers_count() -> None:
    links = ("1gbit", "50ms"), ("10mbit", "10ms")
    assert bdp_of(row(*links)) == pytest.approx(10e6 / 8 * 0.120)
    assert bdp_of(row(*links, middle_workers=1)) == pytest.approx(1e9 / 8 * 0.100)


@pytest.mark.pure
def test_a_link_reaches_as_far_as_any_row_of_its_trace() -> None:
    link = row(LONG).links["a->b"]
    trace = Trace(
        (Row(0.0, rate_bps=10e6), Row(1.0, rate_bps=300e6, delay_s=0.001), Row(2.0, delay_s=0.2, jitter_s=0.1))
    )
    reach = Reach.of(replace(link, trace=trace))
    assert reach.rate_bps == 300e6
    assert reach.delay_s == pytest.approx(0.3)


@pytest.mark.pure
@given(networks())
def test_every_path_between_workers_fits(network: Topology) -> None:
    bdp, routes = bdp_of(network), Routes.over(network)
    found = []
    for source, target in routes.pairs:
        there, back = routes.path(source, target), routes.path(target, source)
        states = [network.links[link_name(*pair)].state for pair in pairwise(there)]
        returning = [network.links[link_name(*pair)].state for pair in pairwise(back)]
        seconds = sum(state.delay_s for state in (*states, *returning)) + 4 * network.lan.delay
        found.append(min(network.lan.rate, *(state.rate_bps for state in states)) / 8 * seconds)
    assert bdp == pytest.approx(max([*found, network.lan.rate / 8 * 4 * network.lan.delay]))


@pytest.mark.pure
@given(st.floats(0, 1e12))
def test_buffers_hold_a_few_of_it_and_no_less_than_the_kernel_s(bdp: float) -> None:
    settings = settings_for(bdp)
    for name, least in ((WMEM, SENT_LEAST), (RMEM, RECEIVED_LEAST)):
        kept, first, greatest = map(int, settings[name].split())
        assert (kept, first) == least[:2]
        assert least[2] <= greatest <= MOST_BYTES
        assert greatest >= min(4 * bdp, MOST_BYTES)
    assert most(settings[RMEM]) >= most(settings[WMEM]), "the receiver would limit"


@pytest.mark.pure
@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_a_larger_path_never_makes_them_smaller(one: float, other: float) -> None:
    small, large = map(settings_for, sorted((one, other)))
    assert all(most(small[name]) <= most(large[name]) for name in (WMEM, RMEM))


def in_force(wan: Wan, worker: str) -> dict[str, str]:
    """Return the transport settings in force in a worker's namespace, by name."""
    return {name: " ".join(wan.run(worker, "sysctl", "-n", name).split()) for name in settings_for(0.0)}


@pytest.mark.system
def test_a_worker_s_kernel_has_what_the_longest_path_needs() -> None:
    with up(row(LONG)) as long:
        wanted = settings_for(140e6 / 8 * 0.218)
        for worker in ("a-w0", "b-w0"):
            assert in_force(long, worker) == wanted
        record = long.network.transport.record()
        assert record["settings"] == wanted
        assert record["refused"] == {}
        long.network.links_in_force.change(LinkChange(link="a->b", rate="280mbit"))  # type: ignore[arg-type]
        assert in_force(long, "a-w0") == settings_for(280e6 / 8 * 0.218) == long.network.transport.settings
        long.network.links_in_force.change(LinkChange(link="a->b", rate="1mbit"))  # type: ignore[arg-type]
        assert in_force(long, "a-w0") == wanted


@pytest.mark.system
def test_turned_off_a_worker_has_what_its_kernel_gives_it() -> None:
    fresh = NamespaceHost("fresh")
    try:
        with up(row(LONG), fit_transport=False) as long:
            for name, value in in_force(long, "a-w0").items():
                process = fresh.popen(["sysctl", "-n", name], stdout=subprocess.PIPE)
                assert " ".join(process.communicate()[0].decode().split()) == value
            assert long.network.transport.record() == {
                "fitted": False,
                "largest_bdp_bytes": 3_815_000,
                "settings": {},
                "refused": {},
            }
    finally:
        fresh.terminate()


@pytest.mark.physics
def test_one_flow_has_more_on_its_way_than_linux_s_own_buffers_hold() -> None:
    """The sender's kernel reports the unacknowledged segments, and the window that the receiver announced.

    A buffer of 4 MiB holds less than 4 MiB of them, on any host.
    """
    with up(row(LONG)) as long, ExitStack() as stack:
        address = long.address("b-w0")
        _start(stack, long, "b-w0", "iperf3", "-s", "-1")
        until(lambda: bool(long.run("b-w0", "ss", "-tlnH", "sport", "5201")))
        _start(stack, long, "a-w0", "iperf3", "-c", address, "-t", f"{PATIENCE_S:g}")
        deadline, unacked, window = time.monotonic() + PATIENCE_S, 0, 0
        while min(unacked, window) <= SENT_LEAST[2]:
            assert time.monotonic() < deadline, f"{unacked} bytes on their way, {window} announced"
            time.sleep(0.1)
            for line in long.run("a-w0", "ss", "-tinH", "dst", address).splitlines():
                figures = dict(re.findall(r"(mss|unacked|snd_wnd):(\d+)", line))
                unacked = max(unacked, int(figures.get("unacked", 0)) * int(figures.get("mss", 0)))
                window = max(window, int(figures.get("snd_wnd", 0)))


def _start(stack: ExitStack, long: Wan, worker: str, *words: str) -> None:
    process = long.network.container(worker).popen([*words], stdout=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)


class Deaf(NamespaceHost):
    """A worker whose kernel refuses one setting."""

    def configure(self, settings: Iterable[str]) -> None:
        (setting,) = settings
        if setting.startswith(RMEM):
            raise PermissionError(1, "Operation not permitted")
        super().configure([setting])


@pytest.mark.system
def test_a_setting_that_a_kernel_refuses_is_told_and_the_others_are_in_force() -> None:
    deaf, topology = Deaf("a-w0"), row(LONG)
    try:
        transport = Transport(True, lambda: [deaf])
        states = {name: link.state for name, link in topology.links.items()}
        transport.follow(topology, Routes.over(topology), states)
        assert transport.record()["refused"] == {f"a-w0: {RMEM}": "Operation not permitted"}
        process = deaf.popen(["sysctl", "-n", WMEM], stdout=subprocess.PIPE)
        assert process.communicate()[0].split()[-1] == str(6 * 3_815_000).encode()
    finally:
        deaf.terminate()
