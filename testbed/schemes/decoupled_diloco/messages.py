"""What Decoupled DiLoCo's members and their syncer send each other. `round` counts the merges of one fragment."""

from __future__ import annotations

from testbed.sync.gossip.message import CodedElements, Elements, Message, message


@message(26)
class FragmentDue(Message):
    """The sender has taken the steps after which another fragment is to be merged."""


@message(27)
class FragmentWanted(Message):
    """The syncer's question for what its reader has changed of a fragment."""

    fragment: int
    round: int


@message(28)
class FragmentChange(Message):
    """What the sender's steps have changed since the last merge of the fragment, as Θ - θ, and what that counts."""

    fragment: int
    round: int
    weight: float
    change: CodedElements


@message(29)
class MergedFragment(Message):
    """A fragment's parameters as its merge of this round left them."""

    fragment: int
    round: int
    values: CodedElements


@message(30)
class GraceOver(Message):
    """The syncer's word to itself that it has waited for long enough for changes of a fragment."""

    fragment: int
    round: int


@message(31)
class LearnerCame(Message):
    """The sender has come while others train, and asks for the model."""


@message(40)
class MergedStep(Message):
    """What this merge of a fragment has changed, for who holds the result of the one before."""

    fragment: int
    round: int
    step: CodedElements


@message(41)
class MergedWhole(Message):
    """A fragment's parameters as they are at all members after this merge, for who may not hold the one before."""

    fragment: int
    round: int
    values: Elements
