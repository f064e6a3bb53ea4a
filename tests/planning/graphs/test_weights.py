"""Averaging weights and the speed of agreement."""

from __future__ import annotations

from math import cos, pi

import pytest

from testbed.planning.graphs import (
    Graph,
    GraphError,
    complete,
    exponential,
    metropolis,
    ring,
    ring_based,
    spectral_gap,
    uniform,
)

pytestmark = pytest.mark.pure

MEMBERS = tuple(f"w{index}" for index in range(16))
PATH = Graph.undirected(("a", "b", "c"), [("a", "b"), ("b", "c")])


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


def test_the_spectral_gap_is_that_of_the_formula() -> None:
    assert spectral_gap(uniform(complete(MEMBERS))) == pytest.approx(1)
    assert spectral_gap(uniform(ring(MEMBERS))) == pytest.approx(1 - (1 + 2 * cos(2 * pi / 16)) / 3)
    assert spectral_gap(uniform(ring(MEMBERS))) < spectral_gap(uniform(ring_based(MEMBERS)))
