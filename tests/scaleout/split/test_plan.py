"""Plans of a split, and assignments of sites held against every assignment that there is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from ipaddress import IPv4Address
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.scaleout.split.cut_links import HostsNetwork, cut_hosts
from testbed.scaleout.split.plan import (
    AssignmentProblem,
    Capacity,
    NoAssignment,
    SiteAssignment,
    SiteNeed,
    SplitPlan,
    assign_sites,
    cut_bps,
    plan_split,
)
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
    assert tuple(cut_hosts(found.assignment.host_of, LINE.links)) == ("b->c", "c->b")
    assert found.assignment.cut_bps == 10e6
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
    assert tuple(cut_hosts(found.assignment.host_of, LINE.links)) == ("a->b", "b->a")


def test_the_networks_that_a_run_swaps_to_count_as_well() -> None:
    other = topology(("a", "b", "5mbit", "10ms"), ("b", "c", "90mbit", "10ms"), ("c", "d", "1mbit", "10ms"))
    found = plan(LINE, other)
    assert found.assignment.host_of.keys() == {"a", "b", "c", "d"}
    assert tuple(cut_hosts(found.assignment.host_of, other.links)) == ("c->d", "d->c")


def test_what_the_hosts_cannot_carry_is_said() -> None:
    with pytest.raises(SpecError, match="110 Mbit/s"):
        plan(LINE, capacity=Capacity(bits_per_second=20e6))


def test_more_pairs_than_there_are_numbers_of_tunnels_are_said_with_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.scaleout.split.plan.PAIRS_AT_MOST", 2)
    assert plan(LINE).assignment.host_of
    third = ("a", "c", "5mbit", "10ms")
    triangle = topology(("a", "b", "50mbit", "10ms"), ("b", "c", "5mbit", "10ms"), third)
    for networks in ((triangle,), (LINE, topology(("a", "b", "5mbit", "10ms"), third))):
        with pytest.raises(SpecError, match="3 pairs") as caught:
            plan(*networks)
        assert (caught.value.file.name, caught.value.fields) == ("net.yaml", ("links",))
        assert caught.value.faults[0].remedy


# The assignment of sites to hosts -------------------------------------------------------------------------------------

HOSTS = ("h0", "h1", "h2")


def problem(sites: int, rates: dict[tuple[int, int], float], hosts: int, **more: object) -> AssignmentProblem:
    return AssignmentProblem(
        sites={f"s{n}": SiteNeed() for n in range(sites)},
        rates={frozenset((f"s{a}", f"s{b}")): rate for (a, b), rate in rates.items()},
        hosts={host: Capacity() for host in HOSTS[:hosts]},
        **{"pinned": {}, "barred": {}, **more},  # type: ignore[arg-type]
    )


def allowed(problem: AssignmentProblem, host_of: Mapping[str, str]) -> bool:
    """Return whether an assignment meets the constraints."""
    for host, capacity in problem.hosts.items():
        own = [problem.sites[site] for site, its in host_of.items() if its == host]
        fits = sum(site.bits_per_second for site in own) <= capacity.bits_per_second
        if not own or not fits or sum(site.cores for site in own) > capacity.cores:
            return False
    kept = all(host_of[site] == host for site, host in problem.pinned.items())
    return kept and not any(
        frozenset(host_of[site] for site in pair) in between for pair, between in problem.barred.items()
    )


def least_of_all(of: AssignmentProblem) -> float | None:
    """Return the least cut over every assignment that is allowed; None where none is."""
    assignments = (dict(zip(of.sites, hosts, strict=True)) for hosts in product(of.hosts, repeat=len(of.sites)))
    return min((cut_bps(of.rates, one) for one in assignments if allowed(of, one)), default=None)


@st.composite
def problems(draw: st.DrawFn) -> AssignmentProblem:
    count, hosts = draw(st.integers(2, 8)), draw(st.integers(1, 3))
    names = [f"s{n}" for n in range(count)]
    # Whole numbers: sums in another order are then the same, and a budget is met or not beyond doubt.
    rates = {frozenset(pair): 1e6 * draw(st.integers(1, 20)) for pair in combinations(names, 2) if draw(st.booleans())}
    needs = {name: SiteNeed(1e6 * draw(st.integers(0, 9)), float(draw(st.integers(0, 4)))) for name in names}
    budgets = {
        host: Capacity(1e6 * draw(st.integers(5, 60)), float(draw(st.integers(2, 20)))) for host in HOSTS[:hosts]
    }
    pinned = {name: draw(st.sampled_from(HOSTS[:hosts])) for name in names if draw(st.integers(0, 4)) == 0}
    between = [frozenset(pair) for pair in combinations(HOSTS[:hosts], 2)]
    barred = {
        pair: frozenset(draw(st.sets(st.sampled_from(between), min_size=1)))
        for pair in rates
        if between and draw(st.integers(0, 5)) == 0
    }
    return AssignmentProblem(needs, rates, budgets, pinned, barred)


@settings(max_examples=60)
@given(of=problems())
def test_no_assignment_that_is_allowed_cuts_less(of: AssignmentProblem) -> None:
    least = least_of_all(of)
    if least is None:
        with pytest.raises(NoAssignment):
            assign_sites(of)
        return
    found = assign_sites(of)
    assert allowed(of, found.host_of)
    assert found.least
    assert found.cut_bps == cut_bps(of.rates, found.host_of) == least


def test_two_clusters_are_cut_at_the_thin_link_between_them() -> None:
    rates = {(0, 1): 100e6, (1, 2): 100e6, (3, 4): 100e6, (4, 5): 100e6, (2, 3): 5e6}
    found = assign_sites(problem(6, rates, 2))
    # To cut one end off costs 100; to use both hosts the thin link is the least.
    assert found.cut_bps == 5e6
    assert {found.host_of["s0"]} == {found.host_of[site] for site in ("s1", "s2")}


def test_every_host_that_is_named_is_used() -> None:
    found = assign_sites(problem(3, {(0, 1): 1e6, (1, 2): 1e6}, 3))
    assert set(found.host_of.values()) == set(HOSTS)


def test_a_site_stays_where_the_file_has_it_whatever_that_cuts() -> None:
    found = assign_sites(problem(2, {(0, 1): 50e6}, 2, pinned={"s0": "h1", "s1": "h0"}))
    assert found.host_of == {"s0": "h1", "s1": "h0"}


def test_forty_sites_are_assigned() -> None:
    """A grid of eight by five, whose narrow side is cut three times."""
    across = {(8 * y + x, 8 * y + x + 1): 10e6 for y in range(5) for x in range(7)}
    down = {(8 * y + x, 8 * y + x + 8): 10e6 for y in range(4) for x in range(8)}
    of = AssignmentProblem(
        {f"s{n}": SiteNeed(cores=1.0) for n in range(40)},
        {frozenset((f"s{a}", f"s{b}")): rate for (a, b), rate in {**across, **down}.items()},
        {host: Capacity(cores=20.0) for host in ("h0", "h1")},
        {},
        {},
    )
    assert assign_sites(of).cut_bps == 50e6


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (problem(1, {}, 2), "2 hosts"),
        (problem(2, {(0, 1): 1e6}, 2, barred={frozenset(("s0", "s1")): frozenset([frozenset(HOSTS[:2])])}), "floor"),
    ],
)
def test_what_cannot_be_says_why(of: AssignmentProblem, why: str) -> None:
    with pytest.raises(NoAssignment, match=why):
        assign_sites(of)


def test_budgets_that_are_too_small_are_named() -> None:
    of = AssignmentProblem({"a": SiteNeed(9e6), "b": SiteNeed(9e6)}, {}, {"h": Capacity(10e6)}, {}, {})
    with pytest.raises(NoAssignment, match="18 Mbit/s"):
        assign_sites(of)


def test_cut_links_are_those_between_hosts() -> None:
    found = SiteAssignment({"a": "h", "b": "h", "c": "g"}, math.nan)
    assert tuple(cut_hosts(found.host_of, ["a->b", "b->c", "c->a"])) == ("b->c", "c->a")
    assert found.sites_on("h") == ("a", "b")
