"""How long members compute before a round, as the experiment declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.protocol import Job
from testbed.worker.slowness import Slowness
from testbed.workload import Workload


@dataclass(frozen=True, slots=True)
class Computed:
    """The steps before a round, from one round's end to the next one's begin: `seconds` in all, and the samples that
    they made of a second; None where no time is declared."""

    seconds: float
    samples_per_s: float | None


class DeclaredCompute:
    """One member's: `steps` before each round, drawn as the workers draw them."""

    def __init__(self, work: Workload, steps: int) -> None:
        self._work = work
        self._steps = steps
        self._slowness = Slowness(work)
        self._taken = 0

    def next(self, at_s: float) -> Computed:
        """Those before the next round, the first of which begins `at_s` seconds after training did."""
        seconds = 0.0
        for _ in range(self._steps):
            self._taken += 1
            seconds += self._work.step_seconds * self._slowness.factor(self._taken, at_s + seconds)
        return Computed(seconds, self._work.batch * self._steps / seconds if seconds else None)


def declared(jobs: Mapping[str, Job], steps: int) -> dict[str, DeclaredCompute]:
    """Each member's, with so many steps before a round."""
    return {name: DeclaredCompute(Workload.from_json(job.workload), steps) for name, job in jobs.items()}
