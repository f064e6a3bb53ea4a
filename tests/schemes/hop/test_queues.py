"""The update queue, the tokens, and the rules that depend on each other."""

from __future__ import annotations

import pytest
import torch

from testbed.schemes.hop.credits import Credits
from testbed.schemes.hop.reception import Entry, HopRules, QueueOverflow, Stale, UpdateQueue
from testbed.sync.gossip.effects import Until
from testbed.sync.gossip.neighbours import Neighbours

pytestmark = pytest.mark.pure


def entry(iteration: int, sender: str) -> Entry:
    return Entry(torch.tensor([float(iteration)]), iteration, sender)


def test_an_iterations_entries_are_taken_in_their_order() -> None:
    queue = UpdateQueue(None)
    for one in (entry(3, "a"), entry(4, "b"), entry(3, "b")):
        queue.enqueue(one)
    assert queue.has(3) and queue.has(4) and not queue.has(5)
    assert [(one.iteration, one.sender) for one in queue.take(3)] == [(3, "a"), (3, "b")]
    assert not queue.has(3) and queue.has(4)


def test_a_full_queue_says_that_a_bound_was_broken() -> None:
    queue = UpdateQueue(1)
    queue.enqueue(entry(0, "a"))
    with pytest.raises(QueueOverflow, match="iteration 1 from b"):
        queue.enqueue(entry(1, "b"))


def test_lag_and_jump_come_from_the_tokens_alone() -> None:
    credits = Credits(max_ig=4)
    for giver, count in (("a", 1), ("b", 4), ("c", 6)):
        credits.put(giver, count)
    assert [credits.held(giver) for giver in "abc"] == [4, 7, 9]
    assert [credits.lag(quantile, "abc") for quantile in (0, 0.5, 1)] == [0, 3, 5]
    assert [credits.jump(10, quantile, "abc") for quantile in (0, 0.5, 1)] == [1, 3, 4]
    assert credits.jump(2, 1, "abc") == 2
    credits.take(4, "abc")
    assert credits.least("abc") == 0
    with pytest.raises(ValueError):
        credits.take(1, "abc")


def test_staleness_keeps_the_newest_and_weighs_it_by_its_age() -> None:
    place = Neighbours("me", ("a", "b"), ("a",), {"me": 1 / 3, "a": 1 / 3, "b": 1 / 3})
    reception = Stale(place, HopRules(staleness=2))
    reception.begin(5)
    for one in (entry(2, "a"), entry(3, "b")):
        reception.enqueue(one)
    assert [(one.iteration, one.sender) for one in reception.queue] == [(3, "b")]
    for one in (entry(4, "a"), entry(3, "a"), entry(7, "b")):
        reception.enqueue(one)
    assert [(one.iteration, one.sender) for one in reception.queue] == [(4, "a"), (7, "b")]
    steps = reception.average(entry(5, "me"), 5)
    with pytest.raises(StopIteration) as done:
        while True:
            until = next(steps)
            assert isinstance(until, Until) and until.condition()
    # The window begins at 3: weights 3, 2 and 5.
    assert done.value.value.item() == pytest.approx((3 * 5 + 2 * 4 + 5 * 7) / 10)


def test_more_backup_than_neighbours_is_refused() -> None:
    place = Neighbours("me", ("a",), ("a",), {"me": 0.5, "a": 0.5})
    with pytest.raises(ValueError, match="backup 2"):
        HopRules(backup=2).check(place)
