"""What the algorithm of a scheme is built around."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from testbed.plan import TrainingChoice
from testbed.protocol import NodeConfiguration
from testbed.sync.gossip.neighbours import Neighbours
from testbed.sync.strategies import Reducer


@dataclass(frozen=True, slots=True)
class RoundTraining:
    """Of a scheme that reduces in rounds: one member's model, and the session that reduces.

    parameters   the tensors that the members are to agree on, each with its `grad`
    weight       what this member counts in a mean
    assignment   what the scheme tells this member alone
    steps        how many local steps the plan in force gives it to the next round; None where it gives none
    chosen       how members train from the next round on, by the plan in force; None where it leaves that to the scheme
    moments      what the member's own optimizer keeps of its steps, tensors of the same shapes at all members
    """

    reducer: Reducer
    parameters: Sequence[torch.Tensor]
    weight: float
    assignment: Mapping[str, Any] = field(default_factory=dict)
    steps: Callable[[], int | None] = lambda: None
    chosen: Callable[[], TrainingChoice | None] = lambda: None
    moments: Callable[[], Sequence[torch.Tensor]] = tuple


@dataclass(frozen=True, slots=True)
class GossipTraining:
    """Of a scheme whose members gossip: one member, and what it begins with.

    members      all of them, in the order of their shards; `samples` are how many each learns from, empty if the same
    place        where the member stands
    clock        says seconds, to who measures how long something takes
    parameters   flat, float32, on the host; the same at all members
    """

    name: str
    members: Sequence[str]
    place: NodeConfiguration
    parameters: torch.Tensor
    iterations: int
    seed: int
    samples: Sequence[float] = ()
    clock: Callable[[], float] = time.monotonic

    @property
    def neighbours(self) -> Neighbours:
        """Its neighbours in the graph; ValueError where it is in none."""
        return Neighbours(self.name, self.place.sources, self.place.targets, self.place.weights)

    @property
    def random(self) -> Random:
        """A source of its own, the same in each run of the seed."""
        return Random(f"{self.seed} {self.name}")
