"""The graph made of a network's fast edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from testbed.planning.graphs import GraphError, fast_edges
from testbed.planning.view import Edge, Member, View

pytestmark = pytest.mark.pure


def view_of(rates: dict[tuple[str, str], float]) -> View:
    names = sorted({end for pair in rates for end in pair})
    members = tuple(Member(name, name, 1.0, f"{name}-up", f"{name}-down") for name in names)
    return View(members, {}, {}, {pair: Edge(rate, 0.1) for pair, rate in rates.items()}, 1000)


def test_two_fast_islands_are_joined_by_their_fastest_pair() -> None:
    rates = {pair: 100.0 for island in ("abc", "xyz") for pair in permutations(island, 2)}
    rates |= {(u, v): 1.0 for u, v in [*permutations("abcxyz", 2)] if (u in "abc") != (v in "abc")}
    rates["b", "y"] = rates["y", "b"] = 5.0
    # Fast one way only: a round waits for the slow direction.
    rates["c", "z"] = 90.0
    graph = fast_edges(view_of(rates), degree=2)
    crossing = {(u, v) for u, v in graph.edges if (u in "abc") != (v in "abc")}
    assert {("b", "y"), ("y", "b")} <= crossing
    assert graph.symmetric


@pytest.mark.parametrize("degree", [2, 3, 5])
def test_nobody_has_more_neighbours_than_asked_for(degree: int) -> None:
    random = Random(1)
    rates = {pair: random.uniform(1, 100) for pair in permutations("abcdefghij", 2)}
    graph = fast_edges(view_of(rates), degree)
    assert max(len(graph.sources(member)) for member in graph.members) <= degree


def test_a_hub_that_all_depend_on_may_have_more() -> None:
    rates = {pair: 1.0 for leaf in "abcd" for pair in (("hub", leaf), (leaf, "hub"))}
    assert len(fast_edges(view_of(rates), 2).sources("hub")) == 4


def test_a_member_without_edges_both_ways_is_refused() -> None:
    view = view_of({("a", "b"): 1.0, ("b", "a"): 1.0, ("a", "c"): 1.0})
    with pytest.raises(GraphError) as caught:
        fast_edges(view, 2)
    assert caught.value.rule == "not-connected"
    whole = replace(view, edges={**view.edges, ("c", "a"): Edge(1.0, 0.1)})
    with pytest.raises(GraphError) as caught:
        fast_edges(whole, 1)
    assert (caught.value.field, caught.value.given) == ("degree", 1)
