"""The session of a member whose rounds are simulated: its training loop is a worker's, on a thread of its own.

training loop -- asks for a round --> waits for its activity        simulation: all have asked --> the round, its mean
              <--------------------- goes on with the mean -----'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue

import torch

from testbed.plan import Plan
from testbed.protocol import FragmentDrift, Job
from testbed.simulation.means import Given
from testbed.simulation.members import Activity, AwaitRound, CompletedRound, ComputeStep, EndStep, Operation
from testbed.sync.checkpoint import Stateful
from testbed.sync.codecs import Residual
from testbed.sync.executor import Work
from testbed.sync.strategies.offer import Offers


class Left(Exception):
    """Nobody waits for this member any more."""


class SimulatedSession(Offers):
    """The member `name`'s. What it does is in its `activities`: one for each round that it asks for, and the last."""

    def __init__(self, name: str, job: Job, plan: Callable[[], Plan]) -> None:
        """`plan` says what the next round goes by."""
        self.name = name
        self.job = job
        self.rounds = 0
        self.activities: SimpleQueue[Activity | BaseException] = SimpleQueue()
        self.given: Given | None = None
        self._plan = plan
        self._means: SimpleQueue[CompletedRound | None] = SimpleQueue()
        self._deeds: list[Operation] = []
        self._stepping = False

    @property
    def plan(self) -> Plan:
        """The plan that the next round goes by."""
        return self._plan()

    @property
    def members(self) -> tuple[str, ...]:
        """All of them."""
        return self.plan.members

    def allreduce(self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None) -> CompletedRound:
        return self._asked(tensor, weight, residual, later=False).wait()

    def allreduce_later(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None
    ) -> Work[CompletedRound]:
        return self._asked(tensor, weight, residual, later=True)

    def share(self, **parts: Stateful) -> int:
        """Nobody comes later."""
        return self.rounds

    def step_done(self) -> None:
        """Nobody comes later."""

    def report(
        self,
        metrics: Mapping[str, float] | None = None,
        compute_s: float = 0.0,
        paced_s: float = 0.0,
        late_s: float = 0.0,
        drift: tuple[FragmentDrift, ...] = (),
    ) -> bool:
        """A step's end. What it took on this host is no matter."""
        self.do(EndStep(dict(metrics or {}), drift))
        self._stepping = False
        return True

    def do(self, deed: Operation) -> None:
        """Note it, after the step's computing."""
        if not self._stepping:
            self._deeds.append(ComputeStep())
            self._stepping = True
        self._deeds.append(deed)

    def resume(self, mean: CompletedRound) -> None:
        """The round that it asked for has been reduced. From the simulation's thread."""
        self._means.put(mean)

    def leave(self) -> None:
        """It is to end. From the simulation's thread."""
        self._means.put(None)

    def end(self) -> None:
        """It has done its job."""
        self.activities.put(Activity(tuple(self._deeds), requests_round=False))

    def _asked(self, tensor: torch.Tensor, weight: float, residual: Residual | None, later: bool) -> Waited:
        if not self._stepping:
            self._deeds.append(ComputeStep())
            self._stepping = True
        self.given = Given(tensor.detach().view(-1), weight, residual)
        activity, self._deeds = Activity(tuple(self._deeds), asynchronous=later), []
        self.activities.put(activity)
        mean = self._means.get()
        if mean is None:
            raise Left
        return Waited(self, mean)


class Waited(Work[CompletedRound]):
    """A round whose mean is there; that it is waited for takes its time."""

    def __init__(self, session: SimulatedSession, mean: CompletedRound) -> None:
        done: Future[CompletedRound] = Future()
        done.set_result(mean)
        super().__init__(done)
        self._session = session

    def wait(self) -> CompletedRound:
        mean = super().wait()
        self._session.do(AwaitRound(mean.round))
        self._session.rounds = max(self._session.rounds, mean.round)
        return mean
