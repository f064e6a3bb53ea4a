"""Partial sums that are far ahead of the means yield where there is a queue, and nothing waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import Group, Tree
from testbed.sync.ahead import AHEAD, Ahead
from testbed.sync.layout import Layout
from testbed.sync.reduction import Part

pytestmark = pytest.mark.unit

PART = Part(1, 1.0, 0)
CHUNK_BYTES = 16


def layout(chunks: tuple[int, ...], keys: tuple[float, ...] = ()) -> Layout:
    """One tree for each of `chunks`, with so many."""
    total = sum(chunks)
    trees = tuple(Tree("a", {"b": "a"}, {"b": "a"}, count / total, keys) for count in chunks)
    return Layout(Group(("a", "b"), trees), CHUNK_BYTES, total * CHUNK_BYTES // 4, 4)


def filled(over: Layout) -> Ahead:
    """All chunks held for one peer."""
    ahead = Ahead(over)
    for number in range(len(over.chunks)):
        ahead.hold("a", number, PART)
    return ahead


def released(ahead: Ahead, crowded: bool) -> list[int]:
    found = []
    while (held := ahead.release("a", lambda: crowded)) is not None:
        found.append(held.number)
    return found


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple))
def test_where_there_is_no_queue_all_goes_the_front_of_every_slice_first(chunks: tuple[int, ...]) -> None:
    over = layout(chunks)
    fronts = [over.chunks[number].front for number in released(filled(over), crowded=False)]
    assert len(fronts) == len(over.chunks) and fronts == sorted(fronts)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple), st.randoms(use_true_random=False))
def test_in_a_queue_it_keeps_near_the_means_and_comes_to_the_end(chunks: tuple[int, ...], draw: object) -> None:
    """Means come in any order; whatever that is, the front chunk is never held back."""
    over = layout(chunks)
    ahead = filled(over)
    out: list[int] = []
    final: set[int] = set()
    while len(final) < len(over.chunks):
        front = min(over.chunks[n].front for n in range(len(over.chunks)) if n not in final)
        new = released(ahead, crowded=True)
        assert all(over.chunks[number].front <= front + AHEAD for number in new)
        out += new
        waiting = sorted(set(out) - final)
        assert waiting, "nothing is on its way"
        number = draw.choice(waiting)  # type: ignore[attr-defined]
        final.add(number)
        ahead.settle(number)
    assert sorted(out) == list(range(len(over.chunks))) and not ahead.peers


def test_of_keys_nothing_is_held_back() -> None:
    """No mean comes before all of a key is reduced: who waited for one would wait for ever."""
    over = layout((40,), keys=(1.0,))
    assert len(released(filled(over), crowded=True)) == len(over.chunks)


def test_each_peer_has_its_own() -> None:
    over = layout((40,))
    ahead = Ahead(over)
    ahead.hold("a", 0, PART)
    ahead.hold("b", 39, PART)
    assert ahead.release("b", lambda: True) is None
    assert ahead.release("a", lambda: True) is not None and ahead.peers == ("b",)
