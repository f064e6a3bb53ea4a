"""Send pacing: partial sums far ahead of the means wait while there is a queue, and all are sent in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import Group, Tree
from testbed.sync.allreduce.chunk import Part
from testbed.sync.allreduce.role import Layout
from testbed.sync.allreduce.sending import AHEAD, CHUNKS_A_HOP, RETURN_FACTOR, SendPacing

pytestmark = pytest.mark.pure

PART = Part(1, 1.0, 0)
CHUNK_BYTES = 16
#: The hops of a star of two members, up and down.
HOPS = 2


def group(chunks: tuple[int, ...], keys: tuple[float, ...] = ()) -> Group:
    """Return a group with a star for each entry of `chunks`, the number of its chunks."""
    total = sum(chunks)
    return Group(("a", "b"), tuple(Tree("a", {"b": "a"}, {"b": "a"}, count / total, keys) for count in chunks))


def layout(its: Group, chunks: tuple[int, ...]) -> Layout:
    return Layout(its, CHUNK_BYTES, sum(chunks) * CHUNK_BYTES // 4, 4)


def filled(over: Layout, its: Group, return_part: float = 0.0) -> SendPacing:
    """Return a pacing that holds all chunks for one peer."""
    ahead = SendPacing(over, its, return_part)
    for number in range(len(over.chunks)):
        ahead.hold("a", number, PART)
    return ahead


def released(ahead: SendPacing, crowded: bool) -> list[int]:
    found = []
    while (held := ahead.release("a", lambda: crowded, 0.0)) is not None:
        found.append(held.number)
    return found


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple))
def test_where_there_is_no_queue_all_goes(chunks: tuple[int, ...]) -> None:
    over = layout(group(chunks), chunks)
    ahead = filled(over, group(chunks))
    assert sorted(released(ahead, crowded=False)) == list(range(len(over.chunks))) and not ahead.peers


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple), st.randoms(use_true_random=False))
def test_in_a_queue_it_keeps_near_the_means_and_comes_to_the_end(chunks: tuple[int, ...], draw: object) -> None:
    """Means come in any order, and the front chunk is never held back."""
    over = layout(group(chunks), chunks)
    ahead = filled(over, group(chunks))
    most = [max(AHEAD, CHUNKS_A_HOP * HOPS / count) for count in chunks]
    out: list[int] = []
    final: set[int] = set()
    while len(final) < len(over.chunks):
        front = min(over.chunks[n].front for n in range(len(over.chunks)) if n not in final)
        new = released(ahead, crowded=True)
        assert all(over.chunks[number].front <= front + most[over.chunks[number].tree] + 1e-9 for number in new)
        out += new
        waiting = sorted(set(out) - final)
        assert waiting, "no partial sum was released"
        number = draw.choice(waiting)  # type: ignore[attr-defined]
        final.add(number)
        ahead.finalize(number, 0.0)
    assert sorted(out) == list(range(len(over.chunks))) and not ahead.peers


def test_of_keys_nothing_is_held_back() -> None:
    """No mean comes before its whole key is reduced: a chunk that waits for a mean would wait forever."""
    keyed = group((40,), keys=(1.0,))
    assert len(released(filled(layout(keyed, (40,)), keyed), crowded=True)) == 40


def test_each_peer_has_its_own() -> None:
    ahead = SendPacing(layout(group((40,)), (40,)), group((40,)), 0.0)
    ahead.hold("a", 0, PART)
    ahead.hold("b", 39, PART)
    assert ahead.release("b", lambda: True, 0.0) is None
    assert ahead.release("a", lambda: True, 0.0) is not None and ahead.peers == ("b",)


def test_what_fits_into_the_time_that_a_mean_takes_to_come_back_is_not_held_back() -> None:
    """Means come back after 0.3 s in a round of 1 s: in the next round RETURN_FACTOR times that may be ahead."""
    its, over = group((40,)), layout(group((40,)), (40,))
    first = filled(over, its, 1.0)
    assert len(released(first, crowded=True)) == 40, "no round was measured yet"
    first = SendPacing(over, its)
    assert first.return_part == 1.0
    for number in range(40):
        first.hold("a", number, PART)
        assert first.release("a", lambda: True, number * 0.7 / 39) is not None
    for number in range(40):
        first.finalize(number, number * 0.7 / 39 + (0.3 if number else 0.35))
    assert first.return_part == pytest.approx(0.3)
    second = filled(over, its, first.return_part)
    assert len(released(second, crowded=True)) in (RETURN_FACTOR * 12, RETURN_FACTOR * 12 + 1)
    assert second.return_part == first.return_part, "no mean came back yet"
