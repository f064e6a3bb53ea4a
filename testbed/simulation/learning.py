"""What members learn in rounds that are simulated: nothing, or for real, all of them in this process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from testbed.protocol import Job

#: Of each member, the metrics of its report.
Metrics = Mapping[str, Mapping[str, float]]


class Learning(Protocol):
    """What goes on in the members beside time."""

    def round(self, number: int) -> Metrics:
        """Take the steps before a round, and its mean; rounds come in order."""

    def digest(self, member: str) -> str:
        """SHA-256 of what a member holds after the last round; empty where it holds nothing."""


def learning_of(jobs: Mapping[str, Job], gradients: bool) -> AbstractContextManager[Learning]:
    """What the members of these jobs learn while inside. PyTorch is loaded where they learn for real alone."""
    if not gradients:
        return nullcontext(NoLearning())
    from testbed.simulation.gradients import learning_together

    return learning_together(jobs)


class NoLearning:
    """Rounds are of bytes that mean nothing."""

    def round(self, number: int) -> Metrics:
        return {}

    def digest(self, member: str) -> str:
        return ""
