"""The floor that the hosts' own network takes off a declared delay."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.shaping import ShapingError
from testbed.link import LinkState, Queue
from testbed.scaleout.split.cut_links import FLOOR_TOLERANCE_S, HostsNetwork, cut_hosts, least_delay_s, over_underlay
from testbed.spec.topology import Topology

pytestmark = pytest.mark.pure

HOSTS = frozenset(("h0", "h1"))


def topology(tmp_path: Path, delay: str = "10ms", trace: str | None = None) -> Topology:
    link: dict[str, object] = {"between": ["a", "b"], "rate": "20mbit", "delay": delay}
    if trace is not None:
        (tmp_path / "t.csv").write_text(trace)
        link["trace"] = {"file": "t.csv"}
    value = {"name": "pair", "sites": {"a": {"workers": 1}, "b": {"workers": 1}}, "links": [link]}
    return Topology.from_value(value, tmp_path / "pair.yaml")


def underlay(rtt_s: float = 4e-3, mtu: int = 1500) -> HostsNetwork:
    return HostsNetwork({HOSTS: rtt_s}, {HOSTS: mtu})


def test_half_of_the_round_trip_is_taken_off(tmp_path: Path) -> None:
    cut = cut_hosts({"a": "h0", "b": "h1"}, topology(tmp_path).links)
    assert {link: underlay().floor_s(hosts) for link, hosts in cut.items()} == {"a->b": 2e-3, "b->a": 2e-3}


def test_nothing_is_taken_off_within_a_host(tmp_path: Path) -> None:
    assert cut_hosts({"a": "h0", "b": "h0"}, topology(tmp_path).links) == {}
    assert underlay().floor_s(frozenset(("h0",))) == 0.0


def test_a_delay_below_the_floor_is_told_with_its_pair_and_its_floor(tmp_path: Path) -> None:
    below = underlay().below({"a": "h0", "b": "h1"}, topology(tmp_path, "1ms"))
    assert list(below) == ["a->b", "b->a"]
    assert all(token in below["a->b"] for token in ("a->b", "1 ms", "h0", "h1", "2 ms"))


def test_one_row_below_the_floor_is_enough(tmp_path: Path) -> None:
    traced = topology(tmp_path, "10ms", "time_s,delay_ms\n0,10\n1,1.5\n2,10\n")
    assert least_delay_s(traced.links["a->b"]) == pytest.approx(1.5e-3)
    assert underlay().below({"a": "h0", "b": "h1"}, traced)
    assert underlay().barred([traced]) == {frozenset("ab"): frozenset([HOSTS])}


def test_the_mtu_is_full_only_where_every_pair_of_hosts_carries_it() -> None:
    assert underlay(mtu=1460).mtu == 1410, "as in some clouds and tunnels"
    assert underlay(mtu=1500).mtu == 1450
    assert underlay(mtu=1549).mtu == 1450
    assert underlay(mtu=1550).mtu == 1500


@given(
    delay_ms=st.integers(2, 500),
    floor_ms=st.floats(0, 2),
    queue=st.sampled_from([Queue(), Queue(2.0), Queue(40, "packets"), Queue(1e5, "bytes")]),
)
def test_delay_and_floor_add_up_and_the_queue_keeps_its_size(delay_ms: int, floor_ms: float, queue: Queue) -> None:
    declared = LinkState(50e6, delay_ms / 1e3, queue=queue)
    enforced = over_underlay("a->b", declared, floor_ms / 1e3)
    assert enforced.delay_s + floor_ms / 1e3 == pytest.approx(declared.delay_s)
    assert enforced.queue_bytes == declared.queue_bytes
    assert (enforced.queue.unit == "packets") == (declared.queue.unit == "packets")


def test_a_state_below_the_floor_is_refused() -> None:
    with pytest.raises(ShapingError, match="a->b"):
        over_underlay("a->b", LinkState(1e6, 1e-3), 2e-3)


@pytest.mark.parametrize(("delay", "is_below"), [("1.99ms", False), ("1.91ms", False), ("1.89ms", True)])
def test_a_delay_below_the_floor_by_no_more_than_a_measurement_s_error_is_accepted(
    tmp_path: Path, delay: str, is_below: bool
) -> None:
    link = topology(tmp_path, delay)
    assert bool(underlay().barred([link])) == bool(underlay().below({"a": "h0", "b": "h1"}, link)) == is_below
    if not is_below:
        assert over_underlay("a->b", link.links["a->b"].state, 2e-3).delay_s == 0.0
        assert link.links["a->b"].state.delay_s >= 2e-3 - FLOOR_TOLERANCE_S
