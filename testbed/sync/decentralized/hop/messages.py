"""What Hop's members send each other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from testbed.sync.decentralized.effects import Message


@dataclass(frozen=True, slots=True)
class Update(Message):
    """The sender's parameters at the start of `iteration`."""

    iteration: int
    parameters: Tensor


@dataclass(frozen=True, slots=True)
class Skipped(Message):
    """The sender will send no update of the iterations `first` to `last`: count them as empty ones."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Tokens(Message):
    """`count` tokens, each the right to advance one iteration as far as the sender is concerned."""

    count: int


@dataclass(frozen=True, slots=True)
class Ack(Message):
    """The sender has averaged the receiver's update of `iteration` (notify-ack)."""

    iteration: int
