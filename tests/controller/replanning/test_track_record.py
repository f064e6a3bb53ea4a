from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.model.round_log import RoundLog
from testbed.controller.replanning.decision import Decision
from testbed.controller.replanning.plan_requests import PlanRequest
from testbed.controller.replanning.track_record import COMPARED, KEPT_SWAPS, DeliveredSavings, Promise, TrackRecord
from testbed.planning import View
from testbed.protocol import Report
from tests.controller.runs import mesh, spec_of
from tests.controller.simulated import simulated

pytestmark = pytest.mark.pure


def test_rounds_over_the_earlier_network_do_not_count(tmp_path: Path) -> None:
    view = mesh()
    with simulated(spec_of(view, hold=True), tmp_path, view, seed=0) as fleet:
        track = TrackRecord(fleet.group, fleet.maker)
        fleet.run(5)
        assert track.performance(fleet.group.clocks.unix()).newest_s
        track.redeclare()
        assert track.performance(fleet.group.clocks.unix()).newest_s == ()
        fleet.run(1)
        assert track.performance(fleet.group.clocks.unix()).newest_s == (), "this round began on the earlier network"
        fleet.run(1)
        assert track.performance(fleet.group.clocks.unix()).newest_s


def test_a_cycle_with_rounds_over_the_earlier_network_does_not_count(tmp_path: Path) -> None:
    view, sizes = mesh(), (1, 4, 2)
    with simulated(spec_of(view, hold=True, measured_bytes=True), tmp_path, view, seed=0) as fleet:
        track = TrackRecord(fleet.group, fleet.maker)

        def train(network: View, rounds: int) -> None:
            for number in range(rounds):
                size = sizes[number % len(sizes)] * view.model_bytes
                fleet.network = replace(network, model_bytes=size)
                fleet.run(1)

        train(view, 9)
        before_s = track.performance(fleet.group.clocks.unix()).whole_s
        track.redeclare()
        slow = mesh(**dict.fromkeys(("a_b", "a_c", "a_d", "b_c", "b_d", "c_d"), 10.0))
        for _ in range(12):
            train(slow, 1)
            after_s = track.performance(fleet.group.clocks.unix()).whole_s
            assert not after_s or min(after_s) > 2 * max(before_s)
        assert after_s


def test_nothing_is_learned_from_rounds_over_the_earlier_network(tmp_path: Path) -> None:
    view = mesh()
    with simulated(spec_of(view, hold=True), tmp_path, view, seed=0) as fleet:
        track = TrackRecord(fleet.group, fleet.maker)
        fleet.run(5)
        track.redeclare()
        track.keep({})
        assert not track._stretches
        fleet.run(3)
        track.keep({})
        assert [stretch.began_s for stretch in track._stretches] == [fleet.group.rounds.complete[5].finished_s]


@pytest.mark.parametrize(
    ("reason", "current_s", "of_rounds", "delivered"),
    [
        ("period", 2.0, True, 0.5),  # the mean of nothing saved and of one swap that delivered everything
        ("network", 2.0, True, 1.0),
        ("period", None, True, 1.0),
        ("period", 1.0, True, 1.0),
        ("period", 0.5, True, 1.0),
        ("period", 2.0, False, 1.0),
    ],
)
def test_a_swap_for_shorter_rounds_alone_promises_a_saving(
    tmp_path: Path, reason: Literal["period", "network"], current_s: float | None, of_rounds: bool, delivered: float
) -> None:
    view = mesh()
    with simulated(spec_of(view, hold=True), tmp_path, view, seed=0) as fleet:
        track = TrackRecord(fleet.group, fleet.maker)
        fleet.run(COMPARED + 1)
        last = fleet.group.plans.plan
        decision = Decision(adopt=True, why="", current_s=current_s, proposed_s=1.0)
        track.adopted(replace(last, epoch=last.epoch + 1), last, decision, PlanRequest(reason), of_rounds)
        now = fleet.group.clocks.unix()
        for number in range(fleet.round, fleet.round + COMPARED + 1):
            for name in view.names:
                timing = (now, now + 60.0, 0.1, 0.0, 0, 0, 0, 0)
                fleet.group.rounds.add(Report(name, number, last.epoch + 1, *timing))
            now += 60.0
        track.round_over()
        assert track.performance(now).delivered == delivered


def test_a_swap_is_not_held_to_its_promise_over_another_network(tmp_path: Path) -> None:
    view = mesh()
    with simulated(spec_of(view, hold=True), tmp_path, view, seed=0) as fleet:
        track = TrackRecord(fleet.group, fleet.maker)
        fleet.run(COMPARED + 1)
        last, now = fleet.group.plans.plan, fleet.group.clocks.unix()
        decision = Decision(adopt=True, why="", current_s=2.0, proposed_s=1.0)
        track.adopted(replace(last, epoch=last.epoch + 1), last, decision, PlanRequest("period"), True)
        track.redeclare()
        for number in range(fleet.round, fleet.round + COMPARED + 1):
            for name in view.names:
                fleet.group.rounds.add(Report(name, number, last.epoch + 1, now, now + 60.0, 0.1, 0.0, 0, 0, 0, 0))
            now += 60.0
        track.round_over()
        assert track.performance(now).delivered == 1.0


def test_a_plan_is_not_held_to_what_another_one_promised(tmp_path: Path) -> None:
    """Members may refuse the plan that was adopted, or a lost member bring another one."""
    view = mesh()
    with simulated(spec_of(view, hold=True), tmp_path, view, seed=0) as fleet:
        track, last = TrackRecord(fleet.group, fleet.maker), fleet.group.plans.plan
        decision = Decision(adopt=True, why="", current_s=2.0, proposed_s=1.0)
        track.adopted(replace(last, epoch=last.epoch + 1), last, decision, PlanRequest("period"), True)
        assert track.performance(0.0).promised_s == float("inf")
        track.adopted(last, last, decision, PlanRequest("period"), True)
        assert track.performance(0.0).promised_s == 1.0


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


def test_the_first_promise_counts_fully_and_a_kept_promise_changes_nothing() -> None:
    rounds = SwappedRounds()
    assert rounds.savings.fraction == 1.0
    rounds.go(0, *[2.0] * 5)
    rounds.swap(0.5, last=0)
    rounds.go(1, *[1.0] * (COMPARED + 1))
    assert rounds.savings.fraction == 1.0


def test_the_round_in_which_a_link_dropped_counts_at_its_length() -> None:
    rounds = SwappedRounds()
    rounds.go(0, 1.0, 1.0, 1.0, 4.0)  # the link dropped in the last one
    rounds.swap(0.5, last=0)
    rounds.go(1, *[1.0] * (COMPARED + 1))
    assert rounds.savings.fraction == 1.0


@given(st.integers(1, 6))
def test_broken_promises_lower_the_fraction_and_kept_ones_raise_it(count: int) -> None:
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


def test_a_promise_stays_open_until_enough_rounds_are_complete() -> None:
    rounds = SwappedRounds()
    rounds.go(0, *[1.0] * 5)
    rounds.swap(0.5, last=0)
    rounds.go(1, *[9.0] * COMPARED)  # the first is not whole: it includes the swap
    assert rounds.savings.fraction == 1.0
