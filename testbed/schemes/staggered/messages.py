"""What members of the staggered scheme send each other. `start` is the first element's index in the model."""

from __future__ import annotations

from testbed.sync.gossip.message import CodedElements, Elements, Message, message


@message(20)
class Local(Message):
    """A member's steps of a round, normalised and weighted, for an owner to add up: the owner's shard of them."""

    round: int
    values: Elements


@message(21)
class Agreed(Message):
    """An owner's shard of the parameters that its group ends the round with."""

    round: int
    values: Elements


@message(22)
class GroupMove(Message):
    """How far a group has gone since its last exchange, for the root that holds these elements."""

    round: int
    start: int
    values: CodedElements


@message(23)
class Merged(Message):
    """The root's elements, with the group's move merged in."""

    round: int
    start: int
    values: CodedElements
