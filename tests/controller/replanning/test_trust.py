from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.model.round_log import RoundLog
from testbed.controller.replanning.trust import COMPARED, KEPT, Promise, Trust
from testbed.protocol import Report

pytestmark = pytest.mark.pure


class Rounds:
    """One member's, one after the other."""

    def __init__(self) -> None:
        self.book = RoundLog(lambda _: frozenset({"a"}))
        self.trust = Trust()
        self.now_s = 1000.0

    def go(self, epoch: int, *seconds: float) -> None:
        for each in seconds:
            began_s, self.now_s = self.now_s, self.now_s + each
            timing = (began_s, self.now_s, 0.1, 0.0, 0, 0, 0, 0)
            self.book.add(Report("a", len(self.book.complete), epoch, *timing))
            self.trust.see(self.book)

    def swap(self, saves: float, last: int) -> None:
        self.trust.promised(Promise(saves, last, last + 1))


def test_the_first_promise_is_trusted_and_a_promise_that_is_kept_changes_nothing() -> None:
    rounds = Rounds()
    assert rounds.trust.part == 1.0
    rounds.go(0, *[2.0] * 5)
    rounds.swap(0.5, last=0)
    rounds.go(1, *[1.0] * (COMPARED + 1))
    assert rounds.trust.part == 1.0


def test_a_drop_that_is_seen_in_the_midst_of_a_round_counts_for_what_that_round_was() -> None:
    rounds = Rounds()
    rounds.go(0, 1.0, 1.0, 1.0, 4.0)  # the last one with the drop in it
    rounds.swap(0.5, last=0)
    rounds.go(1, *[1.0] * (COMPARED + 1))
    assert rounds.trust.part == 1.0


@given(st.integers(1, 6))
def test_promises_that_are_broken_cost_trust_and_those_that_are_kept_bring_it_back(count: int) -> None:
    rounds, epoch = Rounds(), 0
    rounds.go(epoch, *[1.0] * 5)
    for _ in range(count):
        rounds.swap(0.3, epoch)
        epoch += 1
        rounds.go(epoch, *[1.0] * (COMPARED + 1))
    assert rounds.trust.part == pytest.approx(1 / (1 + min(count, KEPT)))
    for _ in range(KEPT):
        rounds.go(epoch, *[2.0] * 4)
        rounds.swap(0.5, epoch)
        epoch += 1
        rounds.go(epoch, *[1.0] * (COMPARED + 1))
    assert rounds.trust.part == 1.0


def test_nothing_is_known_before_there_are_rounds_enough() -> None:
    rounds = Rounds()
    rounds.go(0, *[1.0] * 5)
    rounds.swap(0.5, last=0)
    rounds.go(1, *[9.0] * COMPARED)  # the first of them is not whole: the swap is in it
    assert rounds.trust.part == 1.0
