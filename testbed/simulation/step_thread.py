"""A member's steps on simulated time: made on a thread of its own meanwhile, done when their declared time is over."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from torch import Tensor

from testbed.simulation.event_queue import EventQueue
from testbed.simulation.gossips import Gossips
from testbed.sync.gossip.account import StepFigures
from testbed.sync.gossip.effects import Step


class StepThread:
    """One step at a time, as a member's processor takes them. `spent` is what the last one took."""

    def __init__(self, gossips: Gossips, queue: EventQueue) -> None:
        self.spent = StepFigures()
        self._its = gossips
        self._queue = queue
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{gossips.participant.name}: steps")
        self._free_s = 0.0

    def begin(self, parameters: Tensor, iteration: int, done: Callable[[Step], None]) -> Step:
        """Begin the step of an iteration; `done` is called with it when it is."""
        step, steps = Step(), self._its.steps
        begins_s = max(self._free_s, self._queue.clocks.now_s)
        seconds = self._its.compute.step_s(iteration, begins_s)
        self._free_s = begins_s + seconds
        made = self._thread.submit(lambda: (steps(parameters, iteration), steps.figures()))
        self._queue.schedule(self._free_s, partial(self._finish, step, made, seconds, done))
        return step

    def close(self) -> None:
        """Take no more."""
        self._thread.shutdown(cancel_futures=True)

    def _finish(
        self, step: Step, made: Future[tuple[Tensor, StepFigures]], seconds: float, done: Callable[[Step], None]
    ) -> None:
        change, figures = made.result()
        self.spent = StepFigures(paced_s=seconds, metrics=figures.metrics)
        step.finish(change)
        done(step)
