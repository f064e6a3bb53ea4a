"""Members that learn for real while rounds are simulated: all in one process, a thread each, by the scheme's algorithm.

compute -> before_step -> apply -> after_step        each member, until its strategy has reduced once more
               `--------------------`--> ExactMeans: waits for all, the weighted mean in the members' order
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from testbed.emulation import documentation
from testbed.emulation.image import digits_folder
from testbed.protocol import Job
from testbed.schemes import named
from testbed.schemes.training import RoundTraining
from testbed.sync.codecs import Residual
from testbed.sync.executor import Work
from testbed.worker import learner
from testbed.worker.device import chosen_device
from testbed.worker.loop import counted
from testbed.workload import Workload


@dataclass(frozen=True, slots=True)
class ExactMean:
    """A round that is over, among all members."""

    round: int
    epoch: int = 0
    whole: bool = True


class ExactMeans:
    """Where `count` members reduce: the mean is in float32, summed up in their order, so that it is the same each time.

    A member that fails has the others fail too: threading.BrokenBarrierError.
    """

    def __init__(self, count: int) -> None:
        self._given: list[tuple[torch.Tensor, float]] = [(torch.empty(0), 0.0)] * count
        self._mean = torch.empty(0)
        self._all_gave = threading.Barrier(count, self._reduce)
        self._all_took = threading.Barrier(count)

    def reduce(self, index: int, tensor: torch.Tensor, weight: float) -> None:
        """Replace the tensor of the member at that index by the mean."""
        self._given[index] = tensor, weight
        self._all_gave.wait()
        tensor.copy_(self._mean)
        self._all_took.wait()

    def leave(self) -> None:
        """Nobody is waited for any more."""
        self._all_gave.abort()
        self._all_took.abort()

    def _reduce(self) -> None:
        total = sum(weight for _, weight in self._given)
        self._mean = torch.zeros_like(self._given[0][0])
        for tensor, weight in self._given:
            self._mean.add_(tensor, alpha=weight / total)


class SharedReducer:
    """One member's way to the means; `rounds` says how often it was there."""

    def __init__(self, means: ExactMeans, index: int) -> None:
        self.rounds = 0
        self._means = means
        self._index = index

    def allreduce(self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None) -> ExactMean:
        """Reduce now; nothing is left out for a residual."""
        self._means.reduce(self._index, tensor, weight)
        self.rounds += 1
        return ExactMean(self.rounds)

    def allreduce_later(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None
    ) -> Work[ExactMean]:
        """Reduce now all the same: schemes whose rounds go on beside steps are not simulated."""
        done: Future[ExactMean] = Future()
        done.set_result(self.allreduce(tensor, weight, residual))
        return Work(done)


class LearningMember:
    """A member's model, and the strategy that its job's scheme has it synchronize by."""

    def __init__(self, work: Workload, job: Job, folder: Path, reducer: SharedReducer) -> None:
        self._model = learner.make(work, folder, chosen_device(work.device))
        self._model.compute()  # as a worker does before its first step
        self._described = self._model.describe()
        weight = counted(work, self._described.get("samples"))
        scheme = named(job.scheme)
        training = RoundTraining(reducer, self._model.parameters, weight, job.assignment)
        self._strategy = scheme.algorithm.build(scheme.read(job.options), training)
        self._reducer = reducer

    def round(self, number: int, evaluate: bool) -> dict[str, float]:
        """Steps until the round of this number has been reduced; the metrics of the last of them."""
        metrics: dict[str, float] = {}
        while self._reducer.rounds < number:
            metrics = self._model.compute()
            self._strategy.before_step()
            self._model.apply()
            self._strategy.after_step()
        described, self._described = self._described, {}
        if evaluate:
            with self._strategy.agreed():
                metrics |= self._model.evaluate()
        return metrics | described

    def digest(self) -> str:
        """SHA-256 of the parameters."""
        return self._model.digest()


class RealLearning:
    """All members of a run; the first evaluates for all, as often as its workload says and after the last round."""

    def __init__(self, jobs: Mapping[str, Job], folder: Path) -> None:
        """ValueError when a data set is missing."""
        torch.set_num_threads(1)
        works = {name: Workload.from_json(job.workload) for name, job in jobs.items()}
        first = next(iter(jobs))
        self._evaluator, self._every = first, works[first].evaluate_every
        self._rounds = jobs[first].rounds
        self._means = ExactMeans(len(jobs))
        self._members = {
            name: LearningMember(works[name], job, folder, SharedReducer(self._means, index))
            for index, (name, job) in enumerate(jobs.items())
        }
        self._threads = ThreadPoolExecutor(len(jobs), thread_name_prefix="learning")

    def round(self, number: int) -> dict[str, dict[str, float]]:
        due = number % self._every == 0 or number == self._rounds

        def learn(name: str) -> dict[str, float]:
            try:
                return self._members[name].round(number, due and name == self._evaluator)
            except BaseException:
                self._means.leave()
                raise

        learning = {name: self._threads.submit(learn, name) for name in self._members}
        errors = [error for its in learning.values() if (error := its.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error  # who failed comes before who waited for it
        return {name: its.result() for name, its in learning.items()}

    def digest(self, member: str) -> str:
        return self._members[member].digest()

    def close(self) -> None:
        """Nobody learns any more."""
        self._threads.shutdown()


@contextmanager
def learning_together(jobs: Mapping[str, Job]) -> Iterator[RealLearning]:
    """The members of these jobs, while inside. EmulationError when the digits cannot be made."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "digits").symlink_to(digits_folder())
        documentation.link_into(Path(folder))
        with closing(RealLearning(jobs, Path(folder))) as learning:
            yield learning
