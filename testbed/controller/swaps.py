"""Swaps of the plan: what was asked, when it took force, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from testbed.controller.rounds import Round
from testbed.plan import Plan


@dataclass(slots=True)
class Swap:
    """A plan on its way into force, or there. Times are Unix seconds; None where it has not come to that.

    `active_s`: when the first round under the plan began. `pause_ms`: by how much the gap between the last round
    under the old plan and the first under the new one exceeds the median gap between rounds. `lost_updates` and
    `duplicated_updates`: those of the rounds from the request to the first under the plan.
    """

    plan: Plan
    reason: str
    requested_s: float
    requested_round: int
    holders: set[str] = field(default_factory=set)
    held_s: float | None = None
    active_s: float | None = None
    active_round: int | None = None
    pause_ms: float | None = None
    lost_updates: int = 0
    duplicated_updates: int = 0

    def hold(self, member: str, now_s: float) -> None:
        """`member` holds the plan."""
        self.holders.add(member)
        if self.held_s is None and self.holders == set(self.plan.members):
            self.held_s = now_s

    def activate(self, rounds: Sequence[Round]) -> None:
        """The last of `rounds` (all complete ones, in order) is the first under the plan."""
        first = rounds[-1]
        self.active_s = min(report.started_s for report in first.reports.values())
        self.active_round = first.number
        self.pause_ms = pause_ms(rounds)
        since = [done for done in rounds if done.number >= self.requested_round]
        self.lost_updates = sum(done.lost for done in since)
        self.duplicated_updates = sum(done.duplicated for done in since)

    def to_json(self) -> dict[str, Any]:
        """As the run's summary has it, and a little more."""
        return {
            "kind": "plan",
            "epoch": self.plan.epoch,
            "policy": self.plan.policy,
            "reason": self.reason,
            "requested_s": self.requested_s,
            "held_s": self.held_s,
            "active_s": self.active_s,
            "active_round": self.active_round,
            "pause_ms": self.pause_ms,
            "lost_updates": self.lost_updates,
            "duplicated_updates": self.duplicated_updates,
        }


def pause_ms(rounds: Sequence[Round]) -> float | None:
    """Milliseconds that the gap before the last round exceeds the median of the earlier gaps; at least 0.

    A gap runs from when the last member finished a round to when the last member entered the next. None when
    there is no earlier gap to compare with.
    """
    gaps = [after.entered_s - before.finished_s for before, after in pairwise(rounds)]
    if len(gaps) < 2:
        return None
    return max(0.0, gaps[-1] - median(gaps[:-1])) * 1e3
