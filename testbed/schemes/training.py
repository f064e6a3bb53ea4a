"""The second argument of a scheme's `build`: one member, its model, and what it trains with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from testbed.protocol import NodeConfiguration
from testbed.sync.gossip.neighbours import Neighbours

if TYPE_CHECKING:
    import torch

    from testbed.plan import TrainingChoice
    from testbed.sync.strategies import Reducer


@dataclass(frozen=True, slots=True)
class RoundTraining:
    """The input of one member's training, in a scheme that reduces in rounds."""

    #: The session that reduces.
    reducer: Reducer
    #: The tensors on which the members are to agree, each with its `grad`.
    parameters: Sequence[torch.Tensor]
    #: The member's weight in a mean.
    weight: float
    #: The values that the scheme gives this member alone.
    assignment: Mapping[str, Any] = field(default_factory=dict)
    #: Returns the local steps that the plan in force gives the member until the next round, or None.
    steps: Callable[[], int | None] = lambda: None
    #: Returns the mean of all members' local steps by the plan in force, or None if it has none.
    mean_steps: Callable[[], float | None] = lambda: None
    #: Returns how members train from the next round on by the plan in force; None if the plan leaves it to the scheme.
    chosen: Callable[[], TrainingChoice | None] = lambda: None
    #: Returns the moments that the member's optimizer keeps: tensors of the same shapes at all members. Adam's second
    #: moment of a tensor follows its first one.
    moments: Callable[[], Sequence[torch.Tensor]] = tuple


@dataclass(frozen=True, slots=True)
class GossipTraining:
    """One member of a scheme whose members gossip, at its start."""

    name: str
    #: All members, in the order of their shards.
    members: Sequence[str]
    #: The member's node configuration: its neighbours, weights and rules.
    node: NodeConfiguration
    #: The model's parameters, flat, float32, on the host; the same at all members.
    parameters: torch.Tensor
    iterations: int
    seed: int
    #: The samples from which each member learns; empty if all have equally many.
    samples: Sequence[float] = ()
    #: Returns the time in seconds, for measuring how long something takes.
    clock: Callable[[], float] = time.monotonic

    @property
    def neighbours(self) -> Neighbours:
        """The member's neighbours in the graph. Raises ValueError where it has none."""
        return Neighbours(self.name, self.node.sources, self.node.targets, self.node.weights)

    @property
    def random(self) -> Random:
        """A new source of random numbers for this member. All sources of a member and a seed draw the same numbers."""
        return Random(f"{self.seed} {self.name}")
