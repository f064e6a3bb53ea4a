"""How long members compute, as the experiment declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.protocol import Job
from testbed.worker.slowness import Slowness
from testbed.workload import Workload


class DeclaredCompute:
    """One member's steps, on batches of so many samples, drawn as the workers draw them."""

    def __init__(self, work: Workload) -> None:
        self.batch = work.batch
        self._work = work
        self._slowness = Slowness(work)
        self._taken = 0

    def step(self, at_s: float) -> float:
        """Seconds of the next step, which begins so many seconds after training did."""
        self._taken += 1
        return self.of(self._taken, at_s)

    def of(self, number: int, at_s: float) -> float:
        """Seconds of the step of a number."""
        return self._work.step_seconds * self._slowness.factor(number, at_s)


@dataclass(frozen=True, slots=True)
class DeclaredMembers:
    """What members are, by their experiment: how long each computes, whether they `measure` and tell what they see of
    paths, and whether their steps `overlap` rounds."""

    compute: Mapping[str, DeclaredCompute]
    measure: bool
    overlap: bool

    @classmethod
    def of(cls, jobs: Mapping[str, Job], measure: bool, overlap: bool) -> DeclaredMembers:
        """Those with these jobs."""
        compute = {name: DeclaredCompute(Workload.from_json(job.workload)) for name, job in jobs.items()}
        return cls(compute, measure, overlap)
