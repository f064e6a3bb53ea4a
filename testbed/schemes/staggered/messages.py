"""The messages of staggered groups. `start` is the index of the first element in the model."""

from __future__ import annotations

from testbed.sync.gossip.message import CodedElements, Elements, Message, message


@message(20)
class Local(Message):
    """The sender's change of a round, normalised and weighted, in the receiver's shard."""

    round: int
    values: Elements


@message(21)
class Agreed(Message):
    """The sender's shard of its group's parameters at the end of the round."""

    round: int
    values: Elements


@message(22)
class GroupMove(Message):
    """The change of a group since its last exchange, for the root that holds these elements."""

    round: int
    start: int
    values: CodedElements


@message(23)
class Merged(Message):
    """The root's elements after merging the group's move."""

    round: int
    start: int
    values: CodedElements
