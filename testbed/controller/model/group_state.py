"""The state of an all-reduce group: its members, plans and rounds. The coordinator writes it; replanning reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from testbed.controller.model.actions import Actions
from testbed.controller.model.clocks import Clocks
from testbed.controller.model.identity import Identities
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.plan_history import PlanHistory
from testbed.controller.model.round_log import RoundLog
from testbed.controller.model.spec import ControllerSpec


class GroupState:
    """The members, plans and rounds of one run.

    Attributes:
        clocks: The run's clocks.
        phase: "waiting" until all members are present, "running", or "over".
        jobs: Each member's job.
        membership: The present members.
        plans: The plan in force, a pending one, and earlier ones.
        rounds: The rounds that members reported.
    """

    def __init__(self, spec: ControllerSpec, identities: Identities, out: Path, clocks: Clocks) -> None:
        self.clocks = clocks
        self.phase: Literal["waiting", "running", "over"] = "waiting"
        self.jobs = spec.jobs
        self.membership = AllReduceMembership(identities, spec.elastic)
        self.plans = PlanHistory(out, clocks)
        self.rounds = RoundLog(self._expected)

    @property
    def last_round(self) -> int | None:
        """The number of the last completed round, or None before the first."""
        return self.rounds.last.number if self.rounds.last else None

    def abort(self, why: str) -> Actions:
        """Abort the current round: the present members report their state, and continue under another plan."""
        yield from self.membership.abort(self.plans.epochs.next(), why, self.clocks.monotonic())

    def _expected(self, epoch: int) -> frozenset[str]:
        """Return the members that report the rounds of an epoch."""
        found = self.plans.members(epoch)
        return self.membership.present if found is None else found
