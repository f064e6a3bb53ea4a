"""What a session asks of all-reduce: of one group, or, where members come and go, of one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from testbed.plan import Plan
from testbed.sync.allreduce.group import AllReduceGroup, Roster
from testbed.sync.allreduce.result import RoundResult
from testbed.sync.codecs import Residual
from testbed.sync.errors import SyncError
from testbed.sync.transport import Endpoint


class AllReduceEngine(Endpoint, Protocol):
    """AllReduceGroup and ElasticGroup; they say what these do."""

    @property
    def current(self) -> AllReduceGroup:
        """The group in force."""

    @property
    def finished(self) -> int:
        """The last round that is over."""

    def prepare(self, plan: Plan, roster: Roster, source: str) -> Callable[[], None]:
        """Keep a plan; what this returns connects to its next hops, and holds it."""

    def begin(
        self, values: torch.Tensor, weight: float, residual: Residual | None = None, overlaps: bool = False
    ) -> Callable[[], RoundResult]:
        """Begin a round; what this returns waits for its end."""

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one."""

    def close(self) -> None:
        """Close the connections to peers at once."""
