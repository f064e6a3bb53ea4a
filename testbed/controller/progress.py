"""How far members are and what they go by, for the controller's status and its last word."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any

from testbed.controller.allreduce.group_state import GroupState
from testbed.controller.gossip.iteration_log import IterationLog
from testbed.controller.gossip.topology_changes import TopologyChanges

#: Rounds whose metrics are looked through for the newest of each: models are evaluated in some of them only.
NEWEST_ROUNDS = 50


class Progress(ABC):
    """A coordinator's part of what is said of a run, in plain values. Times are Unix seconds, rates bit/s of frames."""

    @abstractmethod
    def rounds(self, since: int) -> list[dict[str, Any]]:
        """The complete rounds from number `since` on, in short, as far as they are kept."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """How far members are now."""

    @abstractmethod
    def final(self) -> dict[str, Any]:
        """How far they came."""


class GroupProgress(Progress):
    """Of members that reduce in rounds."""

    def __init__(self, group: GroupState) -> None:
        self._group = group

    def rounds(self, since: int) -> list[dict[str, Any]]:
        return [done.to_json() for done in self._group.rounds.complete if done.number >= since]

    def status(self) -> dict[str, Any]:
        last, pending, plan = self._group.rounds.last, self._group.plans.pending, self._group.plans.plan
        estimates = self._group.knowledge.estimates(self._group.clocks.unix())
        metrics: dict[str, float | None] = {}
        for done in self._group.rounds.complete[-NEWEST_ROUNDS:]:
            metrics.update(done.metrics)
        return {
            "round": last.number if last else None,
            "epoch": plan.epoch,
            "pending_epoch": pending.plan.epoch if pending else None,
            "policy": plan.policy,
            "plan": plan.to_json(),
            "round_seconds": last.seconds if last else None,
            "metrics": metrics,
            "estimates": {name: estimate.to_json() for name, estimate in estimates.items()},
            "swaps": [swap.to_json() for swap in self._group.plans.swaps],
            **({"rounds": self._group.rounds.count + self._group.rounds_left} if self._group.conducting else {}),
        }

    def final(self) -> dict[str, Any]:
        rounds, plans = self._group.rounds, self._group.plans
        return {
            "rounds": rounds.count,
            "gaps": None,
            "graph_swaps": [],
            "epoch": plans.plan.epoch,
            "lost_updates": rounds.lost,
            "duplicated_updates": rounds.duplicated,
            "swaps": [swap.to_json() for swap in plans.swaps],
        }


class GossipProgress(Progress):
    """Of members that gossip: each is in an iteration of its own, and none goes by a plan."""

    def __init__(self, iterations: IterationLog, topology: TopologyChanges) -> None:
        self._iterations = iterations
        self._topology = topology

    def rounds(self, since: int) -> list[dict[str, Any]]:
        return []

    def status(self) -> dict[str, Any]:
        return {
            "round": self._iterations.lowest,
            "epoch": 0,
            "pending_epoch": None,
            "policy": None,
            "plan": None,
            "round_seconds": self._iterations.seconds,
            "metrics": self._iterations.metrics(),
            "estimates": {},
            "swaps": [],
        }

    def final(self) -> dict[str, Any]:
        return {
            "rounds": self._iterations.lowest,
            "gaps": self._iterations.to_json(),
            "graph_swaps": [asdict(swap) for swap in self._topology.swaps],
            "epoch": 0,
            "lost_updates": 0,
            "duplicated_updates": 0,
            "swaps": [],
        }
