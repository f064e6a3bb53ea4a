"""What members of the hybrid scheme send each other. `start` is the first element's place in the model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from testbed.sync.decentralized.effects import Message


@dataclass(frozen=True, slots=True)
class Local(Message):
    """A member's steps of a round, normalised and weighted, for an owner to add up: the owner's shard of them."""

    round: int
    values: Tensor


@dataclass(frozen=True, slots=True)
class Agreed(Message):
    """An owner's shard of the parameters that its group ends the round with."""

    round: int
    values: Tensor


@dataclass(frozen=True, slots=True)
class Moved(Message):
    """How far a group has gone since its last exchange, for the root that holds these elements."""

    round: int
    start: int
    values: Tensor


@dataclass(frozen=True, slots=True)
class Merged(Message):
    """The root's elements, with the group's move merged in."""

    round: int
    start: int
    values: Tensor
