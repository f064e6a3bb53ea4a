"""Local steps of a member that gossips: from parameters that it is given, each paced to its declared time."""

from __future__ import annotations

import time

from torch import Tensor

from testbed.protocol import NodeConfiguration
from testbed.sync import flat
from testbed.sync.gossip.iteration_reporter import StepFigures
from testbed.worker.learner import Learner
from testbed.worker.pace import Pace
from testbed.worker.slowness import Slowness
from testbed.workload import Workload


class PacedSteps:
    """Steps of a learner from parameters that are given, each paced to its declared time.

    What an iteration begins with is evaluated in every `evaluate_every`-th, or the next of those in which the member is
    to evaluate, in the time that its first step leaves.
    """

    def __init__(self, model: Learner, work: Workload, place: NodeConfiguration) -> None:
        self._model = model
        self._place = place
        self._evaluate_every = work.evaluate_every
        self._evaluated = -1
        self._slowness = Slowness(work)
        self._pace = Pace(work.step_seconds)
        self._began_s = time.monotonic()
        self._figures = StepFigures()
        model.compute()  # PyTorch sets up its kernels at the first step, which would then be late

    def __call__(self, parameters: Tensor, iteration: int) -> Tensor:
        """The change that the optimizer makes to `parameters` by the next batch's gradient; both flat, on the host."""
        self._pace.begin()
        factor = self._slowness.factor(iteration, time.monotonic() - self._began_s)
        began = time.monotonic()
        flat.scatter(parameters, self._model.parameters)
        metrics = self._model.compute()
        if self._is_due(iteration):
            metrics |= self._model.evaluate()
        self._model.apply()
        change = gathered(self._model).sub_(parameters)
        computed_s = time.monotonic() - began
        paced = self._pace.reach(factor)
        late_s = max(self._figures.late_s, paced.late_s)
        newest = {**self._figures.metrics, **metrics, "steps": 1.0 + (self._figures.metrics.get("steps") or 0.0)}
        self._figures = StepFigures(
            self._figures.compute_s + computed_s, self._figures.paced_s + paced.slept_s, late_s, newest
        )
        return change

    def _is_due(self, step: int) -> bool:
        """Whether to evaluate before a step, counted over all iterations."""
        entered, taken = divmod(step, self._place.steps)
        if taken or self._place.evaluates is None:
            return False
        period, phase = self._place.evaluates
        # A leap may pass the very iteration.
        if entered % period != phase or entered // self._evaluate_every <= self._evaluated:
            return False
        self._evaluated = entered // self._evaluate_every
        return True

    def figures(self) -> StepFigures:
        """What the steps since the last call took."""
        figures, self._figures = self._figures, StepFigures()
        return figures


def gathered(model: Learner) -> Tensor:
    """The learner's parameters as one flat tensor of its own, on the host."""
    return flat.gather(model.parameters, flat.room(model.parameters)).cpu()
