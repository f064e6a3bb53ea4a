"""Members that learn for real while rounds are simulated: all in one process, a thread each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from testbed.emulation import documentation
from testbed.emulation.image import digits_folder
from testbed.plan import Plan
from testbed.protocol import Job
from testbed.simulation import means
from testbed.simulation.activity import Activity, MeanHeld
from testbed.simulation.payload import Payload
from testbed.simulation.training_thread import TrainingThread
from testbed.worker import learner
from testbed.worker.device import chosen_device
from testbed.workload import Workload


class RealLearning:
    """All members of a run."""

    def __init__(self, jobs: Mapping[str, Job], folder: Path, plan: Callable[[], Plan]) -> None:
        """ValueError when a data set is missing."""
        torch.set_num_threads(1)
        self._members: dict[str, TrainingThread] = {}
        for name, job in jobs.items():
            work = Workload.from_json(job.workload)
            model = learner.make(work, folder, chosen_device(work.device))
            self._members[name] = TrainingThread(name, job, plan, model)

    def activities(self) -> dict[str, Activity]:
        return {name: member.activity() for name, member in self._members.items()}

    def reduce(self, number: int, plan: Plan) -> Payload:
        return means.reduce(plan, number, {name: member.given for name, member in self._members.items()})

    def go_on(self, mean: MeanHeld) -> None:
        for member in self._members.values():
            member.go_on(mean)

    def digest(self, member: str) -> str:
        return self._members[member].digest

    def close(self) -> None:
        """Nobody learns any more."""
        for member in self._members.values():
            member.close()


@contextmanager
def learning_together(jobs: Mapping[str, Job], plan: Callable[[], Plan]) -> Iterator[RealLearning]:
    """The members of these jobs, while inside. EmulationError when the digits cannot be made."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "digits").symlink_to(digits_folder())
        documentation.link_into(Path(folder))
        with closing(RealLearning(jobs, Path(folder), plan)) as learning:
            yield learning
