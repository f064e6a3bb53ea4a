"""Members that train while their rounds are simulated: a worker's own loop, each on a thread of its own.

    training loop -- requests a round --> waits        simulation: all have requested --> the round, its mean
                  <---- goes on with the mean -------------------------------------------------'

Members train a real model, or a small one in its place that learns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, cast

import torch

from testbed import sync
from testbed.emulation.containers import documentation
from testbed.emulation.containers.image import digits_folder
from testbed.plan import Plan
from testbed.protocol import FragmentDrift, Job
from testbed.run.errors import CannotRun
from testbed.simulation import means
from testbed.simulation.means import RoundInput
from testbed.simulation.members import Activity, AwaitRound, CompletedRound, ComputeStep, EndStep, Operation
from testbed.simulation.round_model import Payload, coded_payload
from testbed.spec.train import DATASETS
from testbed.sync.checkpoint import Stateful
from testbed.sync.codecs import Residual
from testbed.sync.executor import Work
from testbed.worker import learner
from testbed.worker.learner import Learner, Synthetic, chosen_device
from testbed.worker.loop import train
from testbed.workload import Workload

#: The most elements of a small model: enough that a share of 0.005 of them is off by at most 0.2 %.
MOST_ELEMENTS = 65_536

#: Makes the model of a workload.
MakeLearner = Callable[[Workload], Learner]


@contextmanager
def real_learners() -> Iterator[MakeLearner]:
    """Provide a function that makes real models with their data.

    Raises:
        EmulationError: the digits cannot be made; raised by the function, for models that learn from them.
        CannotRun: there is no GPU, or no data set with a sample for each member; raised by the function.
    """
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        digits = Path(folder) / "digits"
        documentation.link_into(Path(folder))

        def make(work: Workload) -> Learner:
            if work.device == "cuda" and not torch.cuda.is_available():
                raise CannotRun("PyTorch finds no GPU for `device: cuda`; write `auto` or `cpu` for it under `train`")
            if "digits" in DATASETS[work.model] and not digits.exists():
                digits.symlink_to(digits_folder())
            try:
                return learner.make(work, Path(folder), chosen_device(work.device))
            except ValueError as error:
                raise CannotRun(str(error)) from error

        yield make


def small_learner(work: Workload, elements: int) -> Learner:
    """Return a model that learns nothing in place of one with `elements`; it has at most MOST_ELEMENTS."""
    torch.set_num_threads(1)
    few = min(elements, MOST_ELEMENTS)
    inner = work.optimizer if work.optimizer in ("adam", "adamw") else "sgd"  # schemes may send Adam's moments
    return Synthetic(replace(work, model="synthetic", parameters=few, optimizer=inner), torch.device("cpu"))


class TrainingEnded(Exception):
    """The simulation has ended; the member's thread is to end as well."""


class SimulatedSession:
    """The session of a member whose rounds are simulated, and the thread on which the member trains.

    It has what the member's loop and strategy need of a session. The thread waits for each of its rounds.
    """

    def __init__(self, name: str, job: Job, plan: Callable[[], Plan], model: Learner) -> None:
        """Start to train the model; `plan` returns the plan of the next round."""
        self.name = name
        self.job = job
        #: The SHA-256 of the parameters, at the end.
        self.digest = ""
        #: The number of the last round whose mean the member has.
        self.rounds = 0
        #: The member's part in the round that it requested last.
        self.input: RoundInput
        self._plan = plan
        # The member's activities, one for each round and the last; or the error that the training ended with.
        self._activities: SimpleQueue[Activity | BaseException] = SimpleQueue()
        self._completed: SimpleQueue[CompletedRound | None] = SimpleQueue()
        self._operations: list[Operation] = []
        self._stepping = False
        # The simulation decides how long steps take.
        work = replace(Workload.from_json(job.workload), step_seconds=0.0)
        self._thread = Thread(target=self._train, args=(work, model), name=f"{name} trains", daemon=True)
        self._thread.start()

    @property
    def plan(self) -> Plan:
        """The plan of the next round."""
        return self._plan()

    @property
    def members(self) -> tuple[str, ...]:
        """All members."""
        return self.plan.members

    def allreduce(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None, async_op: bool = False
    ) -> Any:
        """Request the weighted mean of a tensor over all members, and wait for it unless `async_op` is set."""
        self._compute()
        self.input = RoundInput(tensor.detach().view(-1), weight, residual)
        activity, self._operations = Activity(tuple(self._operations), asynchronous=async_op), []
        self._activities.put(activity)
        completed = self._completed.get()
        if completed is None:
            raise TrainingEnded
        work = SimulatedWork(self, completed)
        return work if async_op else work.wait()

    def share(self, **parts: Stateful) -> int:
        """Return the last round. There are no members that join later, so nothing is shared."""
        return self.rounds

    def step_done(self) -> None:
        """Do nothing: there are no members that join later."""

    def report(
        self,
        metrics: Mapping[str, float] | None = None,
        compute_s: float = 0.0,
        paced_s: float = 0.0,
        late_s: float = 0.0,
        drift: tuple[FragmentDrift, ...] = (),
        steps: int = 0,
        late_steps: int = 0,
    ) -> bool:
        """End a step. How long it took on this machine does not count."""
        self.add(EndStep(dict(metrics or {}), drift))
        self._stepping = False
        return True

    def add(self, operation: Operation) -> None:
        """Add an operation to the member's activity, after the computing of the step."""
        self._compute()
        self._operations.append(operation)

    def next_activity(self) -> Activity:
        """Wait for the activity up to the next round. Re-raises the error that the training ended with."""
        activity = self._activities.get()
        if isinstance(activity, BaseException):
            raise activity
        return activity

    def resume(self, completed: CompletedRound) -> None:
        """Let the training go on: the input holds the mean of the round. Called by the simulation's thread."""
        self._completed.put(completed)

    def close(self) -> None:
        """End the thread."""
        self._completed.put(None)
        self._thread.join()

    def _train(self, work: Workload, model: Learner) -> None:
        try:
            train(cast(sync.Session, self), work, model)
            self.digest = model.digest()
        except TrainingEnded:
            return
        except BaseException as error:
            self._activities.put(error)
            return
        self._activities.put(Activity(tuple(self._operations), requests_round=False))

    def _compute(self) -> None:
        if not self._stepping:
            self._operations.append(ComputeStep())
            self._stepping = True


class SimulatedWork(Work[CompletedRound]):
    """A round whose mean is there already. Waiting for it is an operation of the member, which takes simulated time."""

    def __init__(self, session: SimulatedSession, completed: CompletedRound) -> None:
        done: Future[CompletedRound] = Future()
        done.set_result(completed)
        super().__init__(done)
        self._session = session

    def wait(self) -> CompletedRound:
        """Wait for the round, and add to the member's activity that it waited."""
        completed = super().wait()
        self._session.add(AwaitRound(completed.round))
        self._session.rounds = max(self._session.rounds, completed.round)
        return completed


class TrainingMembers:
    """The members of a run, each of which trains on a thread of its own."""

    def __init__(self, threads: Mapping[str, SimulatedSession]) -> None:
        self._threads = threads

    def resume(self, completed: CompletedRound) -> None:
        """Let every member's thread go on with the mean."""
        for thread in self._threads.values():
            thread.resume(completed)

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads.values():
            thread.close()


class RealMembers(TrainingMembers):
    """Members that learn for real."""

    def __init__(self, jobs: Mapping[str, Job], make: MakeLearner, plan: Callable[[], Plan]) -> None:
        models = {name: make(Workload.from_json(job.workload)) for name, job in jobs.items()}
        super().__init__({name: SimulatedSession(name, job, plan, models[name]) for name, job in jobs.items()})

    def next_activities(self) -> dict[str, Activity]:
        """Return each member's activity up to the next round that its thread requests."""
        return {name: thread.next_activity() for name, thread in self._threads.items()}

    def reduce(self, number: int, plan: Plan) -> Payload:
        """Give all members the mean of their inputs. Returns the bytes that this moves."""
        return means.reduce(plan, number, {name: thread.input for name, thread in self._threads.items()})

    def digest(self, member: str) -> str:
        """Return the SHA-256 of a member's parameters at its end."""
        return self._threads[member].digest


class PlaceholderMembers(TrainingMembers):
    """Members that learn nothing: a small model shows which rounds they request, and when.

    One thread stands for all members without an assignment, since they do the same. A member with an assignment has a
    thread of its own: a plan may give each of these another number of local steps. Each mean is its own input.
    """

    def __init__(self, jobs: Mapping[str, Job], elements: int, plan: Callable[[], Plan]) -> None:
        threads: dict[str, SimulatedSession] = {}
        self._larger = elements / min(elements, MOST_ELEMENTS)
        self._kinds = {name: name if job.assignment else "" for name, job in jobs.items()}
        for name, kind in self._kinds.items():
            if kind not in threads:
                model = small_learner(Workload.from_json(jobs[name].workload), elements)
                threads[kind] = SimulatedSession(name, jobs[name], plan, model)
        super().__init__(threads)

    def next_activities(self) -> dict[str, Activity]:
        """Return each member's activity up to its next round, computed once for all members without an assignment.

        Metrics are left out, because they would be those of the small model.
        """
        activities = {kind: _without_metrics(thread.next_activity()) for kind, thread in self._threads.items()}
        return {name: activities[kind] for name, kind in self._kinds.items()}

    def reduce(self, number: int, plan: Plan) -> Payload:
        """Return the payload of a round, scaled to the experiment's model. The mean is the input as it is."""
        given = next(iter(self._threads.values())).input
        elements = max(round(given.values.numel() * self._larger), 1)
        return Payload(4 * elements) if given.residual is None else coded_payload(plan, number, elements)

    def digest(self, member: str) -> str:
        """Return an empty text: placeholders have no parameters of the experiment's model."""
        return ""


def _without_metrics(activity: Activity) -> Activity:
    operations = (EndStep({}) if isinstance(its, EndStep) else its for its in activity.operations)
    return replace(activity, operations=tuple(operations))
