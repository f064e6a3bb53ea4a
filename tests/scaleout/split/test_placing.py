"""The placing of sites on hosts, held against every placing that there is."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.scaleout.split.placing import (
    Capacity,
    NoPlacing,
    Placing,
    PlacingProblem,
    SiteNeed,
    allowed,
    cut_bps,
    place,
)

pytestmark = pytest.mark.pure

HOSTS = ("h0", "h1", "h2")


def problem(sites: int, rates: dict[tuple[int, int], float], hosts: int, **more: object) -> PlacingProblem:
    return PlacingProblem(
        sites={f"s{n}": SiteNeed() for n in range(sites)},
        rates={frozenset((f"s{a}", f"s{b}")): rate for (a, b), rate in rates.items()},
        hosts={host: Capacity() for host in HOSTS[:hosts]},
        **{"pinned": {}, "barred": {}, **more},  # type: ignore[arg-type]
    )


def least_of_all(of: PlacingProblem) -> float | None:
    """The least cut over every placing that is allowed; None where none is."""
    placings = (dict(zip(of.sites, hosts, strict=True)) for hosts in product(of.hosts, repeat=len(of.sites)))
    return min((cut_bps(of.rates, one) for one in placings if allowed(of, one)), default=None)


@st.composite
def problems(draw: st.DrawFn) -> PlacingProblem:
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
    return PlacingProblem(needs, rates, budgets, pinned, barred)


@settings(max_examples=60)
@given(of=problems())
def test_no_placing_that_is_allowed_cuts_less(of: PlacingProblem) -> None:
    least = least_of_all(of)
    if least is None:
        with pytest.raises(NoPlacing):
            place(of)
        return
    found = place(of)
    assert allowed(of, found.host_of)
    assert found.least
    assert found.cut_bps == cut_bps(of.rates, found.host_of) == least


def test_two_clusters_are_cut_at_the_thin_link_between_them() -> None:
    rates = {(0, 1): 100e6, (1, 2): 100e6, (3, 4): 100e6, (4, 5): 100e6, (2, 3): 5e6}
    found = place(problem(6, rates, 2))
    # To cut one end off costs 100; to use both hosts the thin link is the least.
    assert found.cut_bps == 5e6
    assert {found.host_of["s0"]} == {found.host_of[site] for site in ("s1", "s2")}


def test_every_host_that_is_named_is_used() -> None:
    found = place(problem(3, {(0, 1): 1e6, (1, 2): 1e6}, 3))
    assert set(found.host_of.values()) == set(HOSTS)


def test_a_site_stays_where_the_file_has_it_whatever_that_cuts() -> None:
    found = place(problem(2, {(0, 1): 50e6}, 2, pinned={"s0": "h1", "s1": "h0"}))
    assert found.host_of == {"s0": "h1", "s1": "h0"}


def test_forty_sites_over_four_hosts_are_placed() -> None:
    """A grid of eight by five, whose narrow side is cut three times."""
    across = {(8 * y + x, 8 * y + x + 1): 10e6 for y in range(5) for x in range(7)}
    down = {(8 * y + x, 8 * y + x + 8): 10e6 for y in range(4) for x in range(8)}
    of = PlacingProblem(
        {f"s{n}": SiteNeed(cores=1.0) for n in range(40)},
        {frozenset((f"s{a}", f"s{b}")): rate for (a, b), rate in {**across, **down}.items()},
        {host: Capacity(cores=20.0) for host in ("h0", "h1")},
        {},
        {},
    )
    assert place(of).cut_bps == 50e6


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (problem(1, {}, 2), "2 hosts"),
        (problem(2, {}, 2, pinned={"s0": "elsewhere"}), "h0, h1"),
        (problem(2, {(0, 1): 1e6}, 2, barred={frozenset(("s0", "s1")): frozenset([frozenset(HOSTS[:2])])}), "floor"),
    ],
)
def test_what_cannot_be_says_why(of: PlacingProblem, why: str) -> None:
    with pytest.raises(NoPlacing, match=why):
        place(of)


def test_budgets_that_are_too_small_are_named() -> None:
    of = PlacingProblem({"a": SiteNeed(9e6), "b": SiteNeed(9e6)}, {}, {"h": Capacity(10e6)}, {}, {})
    with pytest.raises(NoPlacing, match="18 Mbit/s"):
        place(of)


def test_cut_links_are_those_between_hosts() -> None:
    placing = Placing({"a": "h", "b": "h", "c": "g"}, math.nan)
    assert placing.cut_links(["a->b", "b->c", "c->a"]) == ("b->c", "c->a")
    assert placing.sites_on("h") == ("a", "b")
