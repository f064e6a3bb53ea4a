"""How much longer than its declared time a step takes: at random, and by a speed that changes with time. Pure."""

from __future__ import annotations

from bisect import bisect_right
from random import Random

from testbed.workload import Workload


class Slowness:
    """Factors on a member's declared step time.

    The draw for a step follows from the run's seed, the member and the step's number alone: the same steps are slow
    whatever the strategy, so that strategies are compared under the same slowdowns.
    """

    def __init__(self, work: Workload) -> None:
        self._factor = work.slow_factor
        self._probability = work.slow_probability
        self._who = f"{work.seed} {work.shard}"
        self._moments = [at_s for at_s, _ in work.speeds]
        self._speeds = [speed for _, speed in work.speeds]

    def factor(self, step: int, elapsed_s: float) -> float:
        """The factor for the step of that number, begun `elapsed_s` seconds after training began."""
        slow = self._probability and Random(f"{self._who} {step}").random() < self._probability
        return (self._factor if slow else 1.0) / self._speed(elapsed_s)

    def _speed(self, elapsed_s: float) -> float:
        """Each row holds until the next; the last one's moment is when the trace begins anew."""
        if not self._moments:
            return 1.0
        within = elapsed_s % self._moments[-1] if self._moments[-1] else 0.0
        return self._speeds[max(bisect_right(self._moments, within) - 1, 0)]
