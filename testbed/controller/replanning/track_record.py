"""How the plan in force has done, and those before it."""

from __future__ import annotations

from testbed.controller.allreduce.group_state import GroupState
from testbed.controller.replanning.decision import NEWEST, Decision, Standing
from testbed.controller.replanning.foresight import Foresight
from testbed.controller.replanning.plan_requests import PlanRequest
from testbed.controller.replanning.trust import Promise, Trust
from testbed.plan import Plan

#: Plans that are remembered: what a network did once it often does again.
REMEMBERED = 3


class TrackRecord:
    """What another plan has to be better than. `past` are the plans that were in force before, the newest first, and
    `foresight` has what rounds under them taught of how far simulations are off."""

    def __init__(self, group: GroupState) -> None:
        self.past: tuple[Plan, ...] = ()
        self.foresight = Foresight()
        self._group = group
        self._trust = Trust()
        self._promised_s = float("inf")
        self._judged = 0  # so many rounds were complete when the plan in force was last judged
        self._fell_by = -NEWEST  # so many rounds were complete when a link was last seen to fall

    def standing(self, now: float, measured_s: float) -> Standing:
        """How the plan in force has done by now (Unix time), where links were last measured at `measured_s`."""
        rounds, plans = self._group.rounds, self._group.plans
        epoch = plans.plan.epoch
        finished_s = rounds.last.finished_s if rounds.last else now
        return Standing(
            rounds=rounds.under(epoch),
            whole_s=() if measured_s > finished_s else tuple(rounds.whole_s(self._judged, epoch)),
            newest_s=tuple(rounds.whole_s(rounds.count - NEWEST, epoch)),
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

    def judged(self, rounds: int) -> None:
        """The plan in force was judged by its first `rounds` rounds."""
        self._judged = rounds

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
