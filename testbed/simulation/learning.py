"""What members learn in rounds that are simulated: for real, all of them in this process, or nothing.

Either way the scheme's own algorithm says when members compute, reduce, wait and tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from testbed.plan import Plan
from testbed.protocol import Job
from testbed.simulation.activity import Activity, MeanHeld
from testbed.simulation.payload import Payload


class Learning(Protocol):
    """What goes on in the members beside time."""

    def activities(self) -> Mapping[str, Activity]:
        """What each member does up to the next round that it asks for; all ask equally often."""

    def reduce(self, number: int, plan: Plan) -> Payload:
        """Have all hold the mean of the round that they have asked for; what that moves."""

    def go_on(self, mean: MeanHeld) -> None:
        """They go on with it, by the plan that is in force now."""

    def digest(self, member: str) -> str:
        """SHA-256 of what a member holds at its end; empty where it holds nothing."""


def learning_of(
    jobs: Mapping[str, Job], elements: int, gradients: bool, plan: Callable[[], Plan]
) -> AbstractContextManager[Learning]:
    """What the members of these jobs do while inside, with a model of so many elements; `plan` says what the next round
    goes by."""
    from testbed.simulation.gradients import learning_together
    from testbed.simulation.standin import standing_in

    return learning_together(jobs, plan) if gradients else standing_in(jobs, elements, plan)
