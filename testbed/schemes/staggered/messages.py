"""The messages of staggered groups. `start` is the index of the first element in the model."""

from __future__ import annotations

from testbed.sync.gossip.message import CodedElements, Elements, Message, message


@message(20)
class Local(Message):
    """To the owner of a shard: the sender's change of the shard in a round, times the sender's weight in its group."""

    round: int
    values: Elements


@message(21)
class Agreed(Message):
    """From the owner of a shard, to its group: the group's parameters in the shard at the end of a round."""

    round: int
    values: Elements


@message(22)
class GroupMove(Message):
    """To the root that holds these elements: their change by the sender's group since its last exchange."""

    round: int
    start: int
    values: CodedElements


@message(23)
class Merged(Message):
    """From a root, in answer to a GroupMove: these elements of the global model after the merge."""

    round: int
    start: int
    values: CodedElements
