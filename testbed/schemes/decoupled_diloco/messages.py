"""The messages of Decoupled DiLoCo's members and their syncer. `round` counts the merges of one fragment."""

from __future__ import annotations

from testbed.sync.gossip.message import CodedElements, Elements, Message, message


@message(26)
class FragmentDue(Message):
    """The sender has taken the steps after which another fragment is to be merged."""


@message(27)
class FragmentWanted(Message):
    """The syncer asks the receiver for its change of a fragment."""

    fragment: int
    round: int


@message(28)
class FragmentChange(Message):
    """The change by the sender's steps since the last merge of the fragment, Θ - θ, and its weight."""

    fragment: int
    round: int
    weight: float
    change: CodedElements


@message(29)
class MergedFragment(Message):
    """A fragment's parameters after its merge of this round."""

    fragment: int
    round: int
    values: CodedElements


@message(30)
class GraceOver(Message):
    """The syncer's reminder to itself that the grace window of a merge is over."""

    fragment: int
    round: int


@message(31)
class LearnerCame(Message):
    """The sender joins while others train, and asks for the model."""


@message(40)
class MergedStep(Message):
    """The change of a fragment by this merge, for members that hold the result of the merge before."""

    fragment: int
    round: int
    step: CodedElements


@message(41)
class MergedWhole(Message):
    """A fragment's parameters after this merge, for members that may not hold the result of the merge before."""

    fragment: int
    round: int
    values: Elements
