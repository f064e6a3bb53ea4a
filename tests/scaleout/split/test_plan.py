"""How a network is split: what a file asks for, and what it is told where that cannot be."""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from testbed.scaleout.split.placing import Capacity
from testbed.scaleout.split.plan import SplitPlan, plan_split
from testbed.scaleout.underlay import HostsNetwork
from testbed.spec.errors import SpecError
from testbed.spec.topology import Topology

pytestmark = pytest.mark.pure


def topology(*links: tuple[str, str, str, str]) -> Topology:
    sites = {site: {"workers": 1} for a, b, *_ in links for site in (a, b)}
    entries = [{"between": [a, b], "rate": rate, "delay": delay} for a, b, rate, delay in links]
    return Topology.from_value({"name": "net", "sites": sites, "links": entries}, Path("net.yaml"))


LINE = topology(("a", "b", "50mbit", "10ms"), ("b", "c", "5mbit", "10ms"))


def plan(*topologies: Topology, hosts: int = 2, rtt_s: float = 4e-3, **more: Any) -> SplitPlan:
    names = [f"h{n}" for n in range(hosts)]
    pairs = [frozenset(pair) for pair in combinations(names, 2)]
    underlay = HostsNetwork(dict.fromkeys(pairs, rtt_s), dict.fromkeys(pairs, 1500))
    given = {name: (IPv4Address(f"10.0.0.{n}"), more.get("capacity", Capacity())) for n, name in enumerate(names, 1)}
    return plan_split(topologies, more.get("cores", {}), given, more.get("pinned", {}), underlay, Path("x.yaml"))


def test_the_thin_link_is_cut_and_each_host_is_told_the_same() -> None:
    found = plan(LINE)
    assert found.placing.cut_links(LINE.links) == ("b->c", "c->b")
    assert found.placing.cut_bps == 10e6
    first, second = (found.share(host, "run", Path("/ns")) for host in found.hosts)
    assert (first.host_of, first.addresses, first.mtu) == (second.host_of, second.addresses, 1450)
    assert sorted([*filter(first.has, LINE.sites), *filter(second.has, LINE.sites)]) == ["a", "b", "c"]


def test_a_pair_of_hosts_is_probed_from_one_end_and_only_where_a_link_is_cut() -> None:
    found = plan(LINE, hosts=3, pinned={"a": "h0", "b": "h1", "c": "h2"})
    assert {host: list(found.neighbours(host)) for host in found.hosts} == {
        "h0": ["h1"],
        "h1": ["h2"],
        "h2": [],
    }


def test_a_delay_below_the_floor_is_said_with_its_pair_and_its_floor() -> None:
    with pytest.raises(SpecError) as caught:
        plan(topology(("a", "b", "50mbit", "1ms")))
    fault = caught.value.faults[0]
    assert (caught.value.file.name, fault.field) == ("x.yaml", "links.a->b.delay")
    assert all(token in fault.problem for token in ("1 ms", "h0", "h1", "2 ms")) and fault.remedy


def test_another_link_is_cut_where_the_thinnest_is_too_short() -> None:
    found = plan(topology(("a", "b", "50mbit", "10ms"), ("b", "c", "5mbit", "1ms")))
    assert found.placing.cut_links(LINE.links) == ("a->b", "b->a")


def test_the_networks_that_a_run_swaps_to_count_as_well() -> None:
    other = topology(("a", "b", "5mbit", "10ms"), ("b", "c", "90mbit", "10ms"), ("c", "d", "1mbit", "10ms"))
    found = plan(LINE, other)
    assert found.placing.host_of.keys() == {"a", "b", "c", "d"}
    assert found.placing.cut_links(other.links) == ("c->d", "d->c")


def test_what_the_hosts_cannot_carry_is_said() -> None:
    with pytest.raises(SpecError, match="110 Mbit/s"):
        plan(LINE, capacity=Capacity(bits_per_second=20e6))
