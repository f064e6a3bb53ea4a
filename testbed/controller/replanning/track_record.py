"""How the plan in force has done, and those before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from testbed.controller.replanning.decision import NEWEST, Decision, Standing, gone
from testbed.controller.replanning.foresight import SPREAD, Foresight, Lesson
from testbed.controller.replanning.group_state import GroupState
from testbed.controller.replanning.plan_requests import PlanRequest
from testbed.controller.replanning.trust import Promise, Trust
from testbed.plan import Plan
from testbed.planning import View

#: Plans that are remembered: what a network did once it often does again.
REMEMBERED = 3

#: The newest rounds since a plan was last considered that make a stretch, which is learned from as one: a simulation
#: costs some milliseconds.
STRETCH = 3

#: Seconds for which a stretch waits until it is known what links carried in it, and stretches that wait.
WAITS_S, WAITING = 20.0, 8

#: Stretches that are learned from at a time.
LESSONS = 2


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some rounds of a plan, from the begin of the first to the end of the last (Unix time): the median of their whole
    seconds, and how long members computed between them."""

    plan: Plan
    began_s: float
    ended_s: float
    whole_s: float
    compute_s: Mapping[str, float]


class TrackRecord:
    """What another plan has to be better than. `past` are the plans that were in force before, the newest first, and
    `foresight` has what rounds under them taught of how far simulations are off."""

    def __init__(self, group: GroupState) -> None:
        self.past: tuple[Plan, ...] = ()
        self.foresight = Foresight()
        self._group = group
        self._trust = Trust()
        self._promised_s = float("inf")
        self._stretches: deque[Stretch] = deque(maxlen=WAITING)
        self._kept = 0  # so many rounds were complete when the newest stretch was kept
        self._fell_by = -NEWEST  # so many rounds were complete when a link was last seen to fall
        self._since = 0  # the first round that is wholly of the network that is declared

    def standing(self, now: float) -> Standing:
        """How the plan in force has done by now (Unix time)."""
        rounds, plans = self._group.rounds, self._group.plans
        epoch = plans.plan.epoch
        finished_s = rounds.last.finished_s if rounds.last else now
        return Standing(
            rounds=rounds.under(epoch),
            newest_s=tuple(rounds.whole_s(max(rounds.count - NEWEST, self._since), epoch)),
            on_s=now - finished_s,
            fell=rounds.count - self._fell_by < NEWEST,
            left=self._group.rounds_left,
            swaps_s=tuple(swap.pause_ms / 1e3 for swap in plans.swaps if swap.pause_ms is not None),
            promised_s=self._promised_s,
            trust=self._trust.part,
        )

    def round_over(self) -> None:
        """A round more may show what the newest plan brought."""
        self._trust.see(self._group.rounds)

    def link_fell(self) -> None:
        """A link carries much less than it did."""
        self._fell_by = self._group.rounds.count

    def keep(self, compute_s: Mapping[str, float]) -> None:
        """Keep the newest rounds of the plan in force, to learn from them once it is known what links carried."""
        rounds, plan = self._group.rounds, self._group.plans.plan
        if whole := rounds.newest_whole(STRETCH, self._kept, plan.epoch):
            whole_s = median(ended_s - began_s for began_s, ended_s in whole)
            self._stretches.append(Stretch(plan, whole[0][0], whole[-1][1], whole_s, compute_s))
        self._kept = rounds.count

    def redeclare(self) -> None:
        """Forget what another network taught: another one is declared.

        What links of the one before carried will not be known, and rounds over it, of which one may be on, say nothing
        of rounds to come.
        """
        self._since = self._group.rounds.count + 1
        self._stretches.clear()

    def lessons(self, now: float) -> tuple[Lesson, ...]:
        """Take the stretches of which it is known by now what links carried.

        A stretch in which a link of the plan moved by more than SPREAD teaches nothing of the plan.
        """
        found: list[Lesson] = []
        for stretch in list(self._stretches):
            if len(found) == LESSONS:
                break
            seen = self._group.knowledge.hindsight(stretch.began_s, stretch.ended_s, now)
            view = self._among(seen.view, stretch.plan)
            moved = None if view is None else replace(seen, view=view).moved(stretch.plan, stretch.whole_s)
            if view is not None and moved is None and now - stretch.ended_s <= WAITS_S:
                continue
            self._stretches.remove(stretch)
            if view is not None and moved is not None and moved <= SPREAD:
                found.append(Lesson(stretch.plan, view, stretch.whole_s, stretch.compute_s))
        return tuple(found)

    def _among(self, view: View, plan: Plan) -> View | None:
        """The view of a plan's members, whose model has the bytes of its codec; None where one of them, or an edge that
        the plan uses, is gone."""
        if not set(plan.members) <= set(view.names) or gone(plan, view):
            return None
        view = self._group.through(view, plan)
        return view if set(plan.members) == set(view.names) else view.among(plan.members)

    def adopted(self, plan: Plan, last: Plan, decision: Decision, request: PlanRequest, of_rounds: bool) -> None:
        """`plan` follows `last`; `of_rounds`: for what its rounds are to take, by the decision.

        Where it was forced, no plan of before is to come back. How far promises are trusted depends on those alone
        that were made unasked.
        """
        past = () if request.policy else (last, *self.past)
        self.past = tuple(other for other in past if other.shape() != plan.shape())[:REMEMBERED]
        self._promised_s = decision.proposed_s if of_rounds else float("inf")
        if of_rounds and request.reason == "period" and decision.current_s is not None:
            self._trust.promised(Promise(1 - decision.proposed_s / decision.current_s, last.epoch, plan.epoch))
