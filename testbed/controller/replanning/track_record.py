"""The track record of the plan in force and of earlier plans and swaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple

from testbed.controller.model.membership import GroupState
from testbed.controller.model.round_log import RoundLog
from testbed.controller.replanning.decision import LATELY, UNEXPLAINED, Decision, PlanPerformance, missing_edge
from testbed.controller.replanning.plan_maker import PlanMaker
from testbed.controller.replanning.plan_requests import PlanRequest
from testbed.controller.replanning.prediction import SPREAD, PlanMeasurement, RoundPredictor
from testbed.plan import Plan
from testbed.planning import View

#: Earlier plans that are kept: a network often returns to an earlier state.
REMEMBERED = 3

#: The most rounds that are learned from as one stretch. Only the newest since the last question count: a simulation
#: takes some milliseconds.
STRETCH = 3

#: Seconds for which a stretch waits until the rates of its time are known, and the most stretches that wait.
WAITS_S, WAITING = 20.0, 8

#: The most stretches that are learned from at a time.
MEASUREMENTS = 2

#: The newest swaps that delivered savings are averaged over, and the rounds that are compared before and after a swap.
KEPT_SWAPS, COMPARED = 3, 3

#: The newest rounds among which those are found, with the rounds until the new plan is in force.
AMONG = 12


@dataclass(frozen=True, slots=True)
class Stretch:
    """Successive rounds of a plan."""

    plan: Plan
    #: The start of the first round and the end of the last (Unix time).
    began_s: float
    ended_s: float
    #: The median length of a whole round in seconds.
    whole_s: float
    #: The seconds that each member computed between two rounds.
    compute_s: Mapping[str, float]
    #: The bytes that a member contributed to a round.
    round_bytes: int


class Promise(NamedTuple):
    """A saving that a swap promised."""

    #: The part of a round to be saved.
    saves: float
    #: The epochs of the plan before the swap and of the plan after it.
    last: int
    epoch: int
    #: The periods of these two plans.
    periods: tuple[int, int] = (1, 1)


class DeliveredSavings:
    """Compares the savings that recent swaps promised with the savings that they delivered."""

    def __init__(self) -> None:
        self._delivered: tuple[float, ...] = ()
        self._promise: Promise | None = None

    @property
    def fraction(self) -> float:
        """The fraction of promised savings that recent swaps delivered, in (0, 1].

        It is the mean over at most KEPT_SWAPS swaps and one imagined swap that delivered everything.
        """
        return (1 + sum(self._delivered)) / (1 + len(self._delivered))

    def promise(self, promise: Promise) -> None:
        """Record what an adopted plan promised. An earlier promise that is still open is dropped."""
        self._promise = promise

    def forget_promise(self) -> None:
        """Drop the open promise: it was made for another network."""
        self._promise = None

    def round_over(self, rounds: RoundLog) -> None:
        """Settle the open promise once COMPARED whole rounds under the new plan are complete.

        The rounds before are taken at their mean, not their median: the cause of the swap may have slowed only the last
        of them.
        """
        if self._promise is None:
            return
        saves, last, epoch, periods = self._promise
        before_s, after_s = (
            rounds.whole_s(rounds.count - AMONG * period * rounds.cycle, one, period)
            for one, period in zip((last, epoch), periods, strict=True)
        )
        if len(after_s) < COMPARED or not before_s:
            return
        saved = 1 - median(after_s) / fmean(before_s[-COMPARED:])
        self._delivered = (*self._delivered, min(max(saved / saves, 0.0), 1.0))[-KEPT_SWAPS:]
        self._promise = None


class TrackRecord:
    """The record of the plan in force and of earlier plans, which another plan has to beat.

    Attributes:
        earlier_plans: Earlier plans that may return, the newest first.
        predictor: Predicts rounds, with all that measured rounds taught so far.
    """

    def __init__(self, group: GroupState, maker: PlanMaker) -> None:
        self.earlier_plans: tuple[Plan, ...] = ()
        self.predictor = RoundPredictor(covered=maker.options.covered)
        self._group = group
        self._maker = maker
        self._savings = DeliveredSavings()
        self._promised_s, self._promised_by = float("inf"), 0  # and the epoch of that plan
        self._stretches: deque[Stretch] = deque(maxlen=WAITING)
        self._kept = 0  # complete rounds when the newest stretch was kept
        self._fell_by = -LATELY  # complete rounds when a link last fell
        self._since = 0  # the first round that is wholly on the declared network

    def performance(self, now: float) -> PlanPerformance:
        """Return the performance of the plan in force up to now (Unix time)."""
        rounds, plans = self._group.rounds, self._group.plans
        epoch, period = plans.plan.epoch, plans.plan.period
        oldest = max(rounds.count - UNEXPLAINED * period * rounds.cycle, self._first_whole)
        finished_s = rounds.last.finished_s if rounds.last else now
        return PlanPerformance(
            rounds=rounds.count_under(epoch),
            whole_s=tuple(rounds.whole_s(oldest, epoch, period)),
            since_last_s=now - finished_s,
            since_fall=rounds.count - self._fell_by,
            rounds_left=self._maker.rounds_left,
            swaps_s=tuple(
                swap.pause_ms / 1e3 for swap in plans.swaps if swap.pause_ms is not None and not swap.resumed
            ),
            promised_s=self._promised_s if epoch == self._promised_by else float("inf"),
            delivered=self._savings.fraction,
        )

    def round_over(self) -> None:
        """Record that a round ended, which may show the savings of the newest swap."""
        self._savings.round_over(self._group.rounds)

    def link_fell(self) -> None:
        """Record that a link fell."""
        self._fell_by = self._group.rounds.count

    def keep(self, compute_s: Mapping[str, float]) -> None:
        """Keep the newest rounds of the plan in force, to learn from them once the rates of their time are known.

        Rounds over the network before the declared one are left out.
        """
        rounds, plan = self._group.rounds, self._group.plans.plan
        # An oracle is told the network each period, so that hardly any of its rounds would be left.
        oracle = self._maker.options.view.knowledge == "oracle"
        first = self._kept if oracle else max(self._kept, self._first_whole)
        if whole := rounds.newest_whole(STRETCH, first, plan.epoch, plan.period):
            whole_s = median(ended_s - began_s for began_s, ended_s in whole) / rounds.cycle_of(plan.period)
            round_bytes = self._maker.through(self._maker.options.view, plan).model_bytes
            self._stretches.append(Stretch(plan, whole[0][0], whole[-1][1], whole_s, compute_s, round_bytes))
        self._kept = rounds.count

    @property
    def _first_whole(self) -> int:
        """The first round that ends a cycle wholly on the declared network."""
        return self._since + self._group.rounds.cycle - 1

    def redeclare(self) -> None:
        """Forget the rounds over the network before: another one is declared.

        The old links' rates can't be known any more, and rounds over them, the current one included, do not predict
        later rounds.
        """
        self._since = self._group.rounds.count + 1
        self._stretches.clear()
        if self._maker.options.view.knowledge != "oracle":  # an oracle is told the network in each period
            self._savings.forget_promise()

    def take_measurements(self, now: float) -> tuple[PlanMeasurement, ...]:
        """Remove and return the stretches whose rates are known by now (Unix time), at most MEASUREMENTS.

        A stretch in which a link's rate moved by more than SPREAD is dropped: it says nothing about the plan. So is a
        stretch whose rates are not known after WAITS_S seconds, or whose members or edges are gone.
        """
        found: list[PlanMeasurement] = []
        for stretch in list(self._stretches):
            if len(found) == MEASUREMENTS:
                break
            seen = self._maker.knowledge.past_network(stretch.began_s, stretch.ended_s, now)
            view = self._among(replace(seen.view, model_bytes=stretch.round_bytes), stretch.plan)
            moved = None if view is None else replace(seen, view=view).rate_movement(stretch.plan, stretch.whole_s)
            if view is not None and moved is None and now - stretch.ended_s <= WAITS_S:
                continue
            self._stretches.remove(stretch)
            if view is not None and moved is not None and moved <= SPREAD:
                found.append(PlanMeasurement(stretch.plan, view, stretch.whole_s, stretch.compute_s))
        return tuple(found)

    def _among(self, view: View, plan: Plan) -> View | None:
        """Return the view of a plan's members alone.

        Returns:
            The view, or None if a member or an edge of the plan is gone.
        """
        if not set(plan.members) <= set(view.names) or missing_edge(plan, view):
            return None
        return view if set(plan.members) == set(view.names) else view.among(plan.members)

    def adopted(self, plan: Plan, last: Plan, decision: Decision, request: PlanRequest, of_rounds: bool) -> None:
        """Record that a plan was adopted.

        After a forced plan no earlier plan may return. Only swaps that nobody asked for count as promises, and only if
        rounds are to get shorter: a weaker codec makes them longer, so that steps are worth more. `of_rounds` says
        whether the decision's seconds are whole rounds.
        """
        past = () if request.policy else (last, *self.earlier_plans)
        self.earlier_plans = tuple(other for other in past if other.shape() != plan.shape())[:REMEMBERED]
        self._promised_s, self._promised_by = decision.proposed_s if of_rounds else float("inf"), plan.epoch
        current_s = decision.current_s
        if of_rounds and request.reason == "period" and current_s is not None and decision.proposed_s < current_s:
            saves, periods = 1 - decision.proposed_s / current_s, (last.period, plan.period)
            self._savings.promise(Promise(saves, last.epoch, plan.epoch, periods))
