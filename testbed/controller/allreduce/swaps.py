"""Swaps of the plan: what was asked, when it took force, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from testbed.controller.allreduce.round_log import RoundSummary
from testbed.plan import Plan

#: Rounds that a swap's first one is compared with. Few: a plan is often swapped because the network became slow, at
#: the earliest two rounds before, and slow is what the round would have been without the swap.
COMPARED = 3


@dataclass(slots=True)
class Swap:
    """A plan on its way into force, or there. Times are Unix seconds; None where it has not come to that.

    `active_s`: when the first round under the plan began. `pause_ms`: by how much that round was longer than those
    before it. `lost_updates` and `duplicated_updates`: those of the rounds from the request to the first under it.
    `joins` names a member that comes with the plan.
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
    joins: str = ""

    def hold(self, member: str, now_s: float) -> None:
        """`member` holds the plan."""
        self.holders.add(member)
        if self.held_s is None and self.holders == set(self.plan.members):
            self.held_s = now_s

    def activate(self, rounds: Sequence[RoundSummary]) -> None:
        """The last of `rounds` (the newest complete ones, in order) is the first under the plan."""
        first = rounds[-1]
        self.active_s = first.began_s
        self.active_round = first.number
        self.pause_ms = pause_ms([done.finished_s for done in rounds], len(rounds) - 1)
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


def pause_ms(finished_s: Sequence[float], first: int, last: int | None = None) -> float | None:
    """Milliseconds by which a swap made a round longer, at least 0; the same for swaps of plans and of networks.

    `finished_s` has the time at which the last member finished each round. A round's whole time runs from the end of
    the one before to its own, since a swap is paid for inside a round: connections are fresh and begin slowly. The
    longest of the rounds that felt the swap, `first` to `last` (indices; by default only the first), is compared with
    the median of the COMPARED before; None when there are not so many. Where as many came after, with theirs if they
    took longer: a plan or a network that is slower for good is no pause.
    """
    wholes = [after - before for before, after in pairwise(finished_s)]  # the first round has none
    end = first if last is None else last
    felt = wholes[max(first - 1, 0) : end]
    before = wholes[max(first - 1 - COMPARED, 0) : max(first - 1, 0)]
    if not felt or len(before) < COMPARED:
        return None
    after = wholes[end : end + COMPARED]
    usual = max(median(before), median(after) if len(after) == COMPARED else 0.0)
    return max(0.0, max(felt) - usual) * 1e3
