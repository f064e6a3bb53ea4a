"""What Hop's members send each other."""

from __future__ import annotations

from torch import Tensor

from testbed.sync.gossip.message import Message, message


@message(1)
class HopUpdate(Message):
    """The sender's parameters at the start of `iteration`."""

    iteration: int
    parameters: Tensor


@message(2)
class Skipped(Message):
    """The sender will send no update of the iterations `first` to `last`: count them as empty ones."""

    first: int
    last: int


@message(3)
class Tokens(Message):
    """`count` tokens, each the right to advance one iteration as far as the sender is concerned."""

    count: int


@message(4)
class Ack(Message):
    """The sender has averaged the receiver's update of `iteration` (notify-ack)."""

    iteration: int
