"""Members that learn for real while rounds are simulated: all in one process, a thread each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from testbed.plan import Plan
from testbed.protocol import Job
from testbed.simulation import means
from testbed.simulation.learners import MakeLearner, real_learners
from testbed.simulation.members import Activity, CompletedRound
from testbed.simulation.round_model import Payload
from testbed.simulation.training_thread import TrainingThread
from testbed.workload import Workload


class RealLearning:
    """All members of a run, whose models are made by `make`."""

    def __init__(self, jobs: Mapping[str, Job], make: MakeLearner, plan: Callable[[], Plan]) -> None:
        models = {name: make(Workload.from_json(job.workload)) for name, job in jobs.items()}
        self._members = {name: TrainingThread(name, job, plan, models[name]) for name, job in jobs.items()}

    def next_activities(self) -> dict[str, Activity]:
        return {name: member.activity() for name, member in self._members.items()}

    def reduce(self, number: int, plan: Plan) -> Payload:
        return means.reduce(plan, number, {name: member.given for name, member in self._members.items()})

    def resume(self, mean: CompletedRound) -> None:
        for member in self._members.values():
            member.resume(mean)

    def digest(self, member: str) -> str:
        return self._members[member].digest

    def close(self) -> None:
        """Nobody learns any more."""
        for member in self._members.values():
            member.close()


@contextmanager
def learning_together(jobs: Mapping[str, Job], plan: Callable[[], Plan]) -> Iterator[RealLearning]:
    """The members of these jobs, while inside. ValueError when a data set is missing, EmulationError when the digits
    cannot be made."""
    with real_learners() as make, closing(RealLearning(jobs, make, plan)) as learning:
        yield learning
