"""What a member does between two rounds that it asks for, in its order: what takes time of it, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.protocol import FragmentDrift


@dataclass(frozen=True, slots=True)
class ComputeStep:
    """It computes a step."""


@dataclass(frozen=True, slots=True)
class AwaitRound:
    """It goes on when this round is over for it."""

    round: int


@dataclass(frozen=True, slots=True)
class EndStep:
    """A step's end, at which it tells of the rounds that are over by then."""

    metrics: Mapping[str, float]
    drift: tuple[FragmentDrift, ...] = ()


Deed = ComputeStep | AwaitRound | EndStep


@dataclass(frozen=True, slots=True)
class Activity:
    """A member's deeds up to the round that it `asks` for, or to its end. It may go on beside the round (`later`)."""

    deeds: tuple[Deed, ...]
    asks: bool = True
    later: bool = False


@dataclass(frozen=True, slots=True)
class MeanHeld:
    """A round that is over."""

    round: int
    epoch: int
    whole: bool
