"""What members learn in rounds that are simulated: for real, all of them in this process, or nothing.

Either way the scheme's own algorithm says when members compute, reduce, wait and tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from testbed.plan import Plan
from testbed.protocol import Job
from testbed.simulation.activity import Activity, AwaitRound, ComputeStep, Deed, EndStep, MeanHeld
from testbed.simulation.round_model import Payload, coded_payload


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


def reduces_each_step(job: Job) -> bool:
    """Return whether the job is a round of the whole gradient after each step, whatever the gradient holds."""
    return job.scheme == "gradients" and job.options.get("powersgd_rank") is None


class GradientRounds:
    """Members of which `reduces_each_step` holds: their rounds are known without PyTorch and a model."""

    def __init__(self, jobs: Mapping[str, Job], elements: int) -> None:
        self._jobs = jobs
        self._elements = elements
        self._held = 0
        self._deeds: tuple[Deed, ...] = ()

    def activities(self) -> dict[str, Activity]:
        """Return for each member: the end of the step whose round is over, then the next step and its round, if any."""
        return {name: self._activity(job) for name, job in self._jobs.items()}

    def _activity(self, job: Job) -> Activity:
        asks = self._held < job.rounds
        return Activity((*self._deeds, ComputeStep()) if asks else self._deeds, asks=asks)

    def reduce(self, number: int, plan: Plan) -> Payload:
        """Return the whole gradient, through the codecs of the plan."""
        return coded_payload(plan, number, self._elements)

    def go_on(self, mean: MeanHeld) -> None:
        """End the step whose round this is."""
        self._deeds = (AwaitRound(mean.round), EndStep({}))
        self._held = max(self._held, mean.round)

    def digest(self, member: str) -> str:
        """Return "": the members hold nothing."""
        return ""


def learning_of(
    jobs: Mapping[str, Job], elements: int, gradients: bool, plan: Callable[[], Plan]
) -> AbstractContextManager[Learning]:
    """Return what the members of these jobs learn, as a context manager.

    Args:
        jobs: The job of each member.
        elements: The number of the model's elements.
        gradients: Whether members learn for real.
        plan: Returns the plan that the next round goes by.
    """
    if not gradients and all(map(reduces_each_step, jobs.values())):
        return nullcontext(GradientRounds(jobs, elements))
    from testbed.simulation.gradients import learning_together
    from testbed.simulation.standin import standing_in

    return learning_together(jobs, plan) if gradients else standing_in(jobs, elements, plan)
