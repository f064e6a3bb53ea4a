"""Graphs, what refuses to be one, averaging weights, and the graph made of a network's fast edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.planning.graphs import (
    FAMILIES,
    Graph,
    GraphError,
    complete,
    double_ring,
    exponential,
    fast_edges,
    make_graph,
    metropolis,
    ring,
    ring_based,
    torus,
    uniform,
)
from testbed.planning.view import Edge, Member, View

pytestmark = pytest.mark.pure

MEMBERS = tuple(f"w{index}" for index in range(16))
PATH = Graph.undirected(("a", "b", "c"), [("a", "b"), ("b", "c")])


def names(count: int) -> tuple[str, ...]:
    return tuple(f"w{index}" for index in range(count))


@pytest.mark.parametrize(
    ("family", "degree", "diameter"),
    [(ring, 2, 8), (ring_based, 3, 4), (double_ring, 4, 3), (exponential, 4, 4), (torus, 4, 4), (complete, 15, 1)],
)
def test_sixteen_members_have_the_degree_and_diameter_of_their_family(
    family: Callable[[Sequence[str]], Graph], degree: int, diameter: int
) -> None:
    graph = family(names(16))
    assert {len(graph.targets(member)) for member in graph.members} == {degree}
    assert {len(graph.sources(member)) for member in graph.members} == {degree}
    assert max(max(row.values()) for row in graph.hops.values()) == diameter


@given(st.sampled_from([*FAMILIES]), st.integers(2, 40))
def test_a_family_gives_a_connected_graph_or_says_which_number_it_needs(family: str, count: int) -> None:
    try:
        graph = make_graph(family, names(count))
    except GraphError as error:
        assert (error.field, error.given) == ("members", count)
        assert family in {"ring-based", "double-ring", "torus"}
    else:
        assert all(len(graph.hops[member]) == count for member in graph.members)
        assert graph.symmetric or family == "exponential"


def test_a_graph_that_is_cut_names_the_stuck_members_and_an_edge_that_mends_it() -> None:
    edges = {("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")}
    with pytest.raises(GraphError) as caught:
        Graph(("a", "b", "c", "d"), frozenset(edges))
    assert (caught.value.rule, caught.value.given, caught.value.link) == ("not-connected", ("c", "d"), "c->a")
    assert Graph(("a", "b", "c", "d"), frozenset(edges | {("c", "a")})).hops["d"]["b"] == 3


@pytest.mark.parametrize(
    ("members", "edges", "field"),
    [
        (("a", "a"), set(), "members"),
        ((), set(), "members"),
        (("a", "b"), {("a", "b"), ("b", "z")}, "edges"),
        (("a", "b"), {("a", "b"), ("b", "a"), ("a", "a")}, "edges"),
    ],
)
def test_what_is_no_graph_is_refused(members: tuple[str, ...], edges: set[tuple[str, str]], field: str) -> None:
    with pytest.raises(GraphError) as caught:
        Graph(members, frozenset(edges))
    assert caught.value.field == field


def test_an_unknown_family_lists_those_there_are() -> None:
    with pytest.raises(GraphError) as caught:
        make_graph("star", names(4))
    assert (caught.value.field, caught.value.given) == ("family", "star")


@pytest.mark.parametrize("weights", [uniform(PATH), metropolis(PATH), uniform(exponential(MEMBERS))])
def test_what_a_member_averages_weighs_one_together(weights: dict[str, dict[str, float]]) -> None:
    assert all(sum(row.values()) == pytest.approx(1) and row[member] > 0 for member, row in weights.items())


def test_metropolis_counts_every_member_alike_where_uniform_does_not() -> None:
    def counted(weights: dict[str, dict[str, float]], sender: str) -> float:
        return sum(row.get(sender, 0) for row in weights.values())

    assert [counted(metropolis(PATH), member) for member in PATH.members] == pytest.approx([1, 1, 1])
    assert counted(uniform(PATH), "b") == pytest.approx(1 / 2 + 1 / 3 + 1 / 2)


def test_metropolis_refuses_an_edge_without_its_reverse() -> None:
    with pytest.raises(GraphError) as caught:
        metropolis(exponential(MEMBERS))
    assert (caught.value.rule, caught.value.link) == ("one-way-edge", "w1->w0")


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


def test_a_member_without_another_is_refused() -> None:
    """Its participant would have no neighbour to choose from."""
    alone = View((Member("a", "a", 1.0, "a-up", "a-down"),), {}, {}, {}, 1000)
    with pytest.raises(GraphError) as caught:
        fast_edges(alone, 2)
    assert (caught.value.field, caught.value.given) == ("members", 1)
