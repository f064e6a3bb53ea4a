from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.model.round_log import RoundLog
from testbed.controller.replanning.track_record import COMPARED, KEPT_SWAPS, DeliveredSavings, Promise, TrackRecord
from testbed.protocol import Report
from tests.controller.runs import mesh, spec_of
from tests.controller.simulated import simulated

pytestmark = pytest.mark.pure


def test_rounds_over_the_network_before_say_nothing_of_the_one_that_is_declared(tmp_path: Path) -> None:
    view = mesh()
    with simulated(spec_of(view, hold=True), tmp_path, view, seed=0) as fleet:
        track = TrackRecord(fleet.group)
        fleet.run(5)
        assert track.performance(fleet.group.clocks.unix()).newest_s
        track.redeclare()
        assert track.performance(fleet.group.clocks.unix()).newest_s == ()
        fleet.run(1)
        assert track.performance(fleet.group.clocks.unix()).newest_s == (), "that round was on"
        fleet.run(1)
        assert track.performance(fleet.group.clocks.unix()).newest_s


class SwappedRounds:
    """Successive rounds of one member, with the swaps among them."""

    def __init__(self) -> None:
        self.rounds = RoundLog(lambda _: frozenset({"a"}))
        self.savings = DeliveredSavings()
        self.now_s = 1000.0

    def go(self, epoch: int, *seconds: float) -> None:
        for each in seconds:
            began_s, self.now_s = self.now_s, self.now_s + each
            timing = (began_s, self.now_s, 0.1, 0.0, 0, 0, 0, 0)
            self.rounds.add(Report("a", len(self.rounds.complete), epoch, *timing))
            self.savings.round_over(self.rounds)

    def swap(self, saves: float, last: int) -> None:
        self.savings.promise(Promise(saves, last, last + 1))


def test_the_first_promise_is_trusted_and_a_promise_that_is_kept_changes_nothing() -> None:
    rounds = SwappedRounds()
    assert rounds.savings.fraction == 1.0
    rounds.go(0, *[2.0] * 5)
    rounds.swap(0.5, last=0)
    rounds.go(1, *[1.0] * (COMPARED + 1))
    assert rounds.savings.fraction == 1.0


def test_a_drop_that_is_seen_in_the_midst_of_a_round_counts_for_what_that_round_was() -> None:
    rounds = SwappedRounds()
    rounds.go(0, 1.0, 1.0, 1.0, 4.0)  # the last one with the drop in it
    rounds.swap(0.5, last=0)
    rounds.go(1, *[1.0] * (COMPARED + 1))
    assert rounds.savings.fraction == 1.0


@given(st.integers(1, 6))
def test_promises_that_are_broken_cost_trust_and_those_that_are_kept_bring_it_back(count: int) -> None:
    rounds, epoch = SwappedRounds(), 0
    rounds.go(epoch, *[1.0] * 5)
    for _ in range(count):
        rounds.swap(0.3, epoch)
        epoch += 1
        rounds.go(epoch, *[1.0] * (COMPARED + 1))
    assert rounds.savings.fraction == pytest.approx(1 / (1 + min(count, KEPT_SWAPS)))
    for _ in range(KEPT_SWAPS):
        rounds.go(epoch, *[2.0] * 4)
        rounds.swap(0.5, epoch)
        epoch += 1
        rounds.go(epoch, *[1.0] * (COMPARED + 1))
    assert rounds.savings.fraction == 1.0


def test_nothing_is_known_before_there_are_rounds_enough() -> None:
    rounds = SwappedRounds()
    rounds.go(0, *[1.0] * 5)
    rounds.swap(0.5, last=0)
    rounds.go(1, *[9.0] * COMPARED)  # the first of them is not whole: the swap is in it
    assert rounds.savings.fraction == 1.0
