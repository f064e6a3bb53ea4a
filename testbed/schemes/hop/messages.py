"""The messages of Hop's members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.sync.gossip.message import Message, message

if TYPE_CHECKING:
    from torch import Tensor


@message(1)
class HopUpdate(Message):
    """The sender's parameters at the start of `iteration`."""

    iteration: int
    parameters: Tensor


@message(2)
class Skipped(Message):
    """The sender will send no update of the iterations `first` to `last`; they count as empty updates."""

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
