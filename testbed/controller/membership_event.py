"""What is put on record when a member leaves or comes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    """A member `left` or `came`: when (Unix time), after which round or in which iteration, and why.

    `epoch` is that of the first plan after it, 0 where members go by no plans.
    """

    kind: str
    member: str
    at_s: float
    round: int | None
    epoch: int
    why: str
