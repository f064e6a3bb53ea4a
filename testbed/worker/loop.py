"""Training: compute, wait for the declared time, step. The strategy makes rounds before or after a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from testbed import sync
from testbed.schemes import SCHEMES, is_file, named
from testbed.schemes.training import RoundTraining
from testbed.sync import Strategy
from testbed.sync.rendezvous import Rendezvous, telling_failure
from testbed.sync.session import session_of
from testbed.worker import gossip, learner
from testbed.worker.learner import Learner, chosen_device
from testbed.worker.pace import Pace, Paced, Slowness
from testbed.workload import Workload


def work_at(rendezvous: Rendezvous, folder: Path) -> None:
    """Train as the member's job says, over a session or by gossip.

    Args:
        rendezvous: The member's connection to the controller, with its job.
        folder: The folder of the data sets.

    Raises:
        SyncError: The members can't go on.
        Stopped: The controller stopped the training.
        ValueError: The job names a scheme, model, data set, optimizer or codec that does not exist.
    """
    job = rendezvous.job
    with telling_failure(rendezvous):  # a file may import packages that this machine lacks
        scheme = named(job.scheme) if job.scheme in SCHEMES or is_file(job.scheme) else None
    if scheme is not None and scheme.exchange == "gossip":
        gossip.train(rendezvous, scheme, folder)
        return
    with session_of(rendezvous) as session:
        work_in(session, folder)


def work_in(session: sync.Session, folder: Path) -> None:
    """Train to the end as the session's job says. `folder` has the data sets.

    Raises:
        SyncError: The members can't go on.
        Stopped: The controller stopped the training.
        ValueError: The job names a model, data set or optimizer that does not exist.
    """
    torch.set_num_threads(1)
    work = Workload.from_json(session.job.workload)
    model = learner.make(work, folder, chosen_device(work.device))
    metrics = train(session, work, model)
    session.finish(model.digest(), metrics)


def train(session: sync.Session, work: Workload, model: Learner) -> dict[str, float]:
    """Train for all rounds of the session's job, and return the metrics of the last one.

    The first member evaluates for all members, after a round. It evaluates the parameters of the last global round,
    which all members had. Work between two rounds counts towards the declared steps, so an evaluation takes place in
    time that would be slept; the rounds themselves do not count.

    A member that joins while the others train begins at their step, and at that place of its data and of its trace of
    speed.

    If the plan says how members train, each reports the number of its steps, and its last loss at parameters that all
    members held. That loss is of a new batch, and means the same under every scheme.
    """
    rounds = session.job.rounds
    metrics: dict[str, float] = {}
    model.compute()  # PyTorch sets up its kernels at the first step, which would then be late
    described = model.describe()
    strategy = strategy_of(session, model, weight_in_mean(work, described.get("samples")))
    pace, slowness = Pace(work.step_seconds), Slowness(work)
    spent = Spent()
    steps = TrainingProgress()
    session.share(learner=model, strategy=strategy, steps=steps)
    model.skip(steps.taken)
    evaluated = strategy.progress(session.rounds, steps.taken) // work.evaluate_every
    followed: dict[str, float] = {}
    strategy.watch(model.loss, work.evaluate_every)
    drift = strategy.drift()
    over = strategy.over(rounds, steps.taken)
    pace.begin()
    while not over:
        number = steps.taken + 1
        factor = slowness.factor(number, steps.elapsed_s)
        with spent.computing():
            metrics = model.compute()
        spent.add(pace.reach(factor))
        pace.begin()
        if strategy.together and "loss" in metrics:
            followed["agreed_loss"] = metrics["loss"]
        with pace.aside():
            strategy.before_step()
        with spent.computing():
            model.apply()
        with pace.aside():
            strategy.after_step()
            if over := strategy.over(rounds, number):
                strategy.settle()
        steps.taken = number
        session.step_done()
        evaluates = session.name == session.members[0]
        done = strategy.progress(session.rounds, number) // work.evaluate_every
        if evaluates and (done > evaluated or over):
            evaluated = done
            with strategy.agreed():
                metrics |= model.evaluate()
        drift += strategy.drift()
        told = metrics | described | spent.rate(work.batch)
        if session.plan.training is not None:
            told |= {**followed, "steps": float(number)}
        if session.report(told, spent.compute_s, spent.slept_s, spent.late_s, drift, spent.steps, spent.late_steps):
            spent, described, drift = Spent(), {}, strategy.drift()
    return metrics


def strategy_of(session: sync.Session, model: Learner, weight: float) -> Strategy:
    """Return the strategy that synchronizes the model as the session's job says."""
    job = session.job
    scheme = named(job.scheme)
    training = RoundTraining(
        session,
        model.parameters,
        weight,
        job.assignment,
        steps=lambda: session.plan.steps.get(session.name),
        chosen=lambda: session.plan.training,
        moments=model.moments,
    )
    strategy: Strategy = scheme.algorithm.build(scheme.read(job.options), training)
    return strategy


def weight_in_mean(work: Workload, samples: float | None) -> float:
    """Return the weight of this member in the members' mean: its samples, or the batch if all have as many.

    If data is shared out unevenly, the weight is the number of the member's samples, so that all samples count the same
    (n_i/Σn: FedAvg, McMahan et al. 2017, algorithm 1).
    """
    return float(work.batch) if work.partition == "iid" or samples is None else samples


class TrainingProgress:
    """The steps that were taken, the same number for all members, and the time since training began.

    A member that joins takes over both from another member.

    Args:
        clock: Returns the current time in seconds.

    Attributes:
        taken: The number of steps that were taken.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.taken = 0
        self._clock = clock
        self._began_s = clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since training began."""
        return self._clock() - self._began_s

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps that were taken, and the seconds since training began."""
        return {"taken": self.taken, "elapsed_s": self.elapsed_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of another member's `state_dict`."""
        self.taken = int(state["taken"])
        self._began_s = self._clock() - float(state["elapsed_s"])


@dataclass
class Spent:
    """The time of the steps since the last report."""

    compute_s: float = 0.0
    slept_s: float = 0.0
    #: Seconds by which the worst step ended after its declared end.
    late_s: float = 0.0
    steps: int = 0
    late_steps: int = 0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Count the time inside the context as computing."""
        began = time.monotonic()
        yield
        self.compute_s += time.monotonic() - began

    def add(self, paced: Paced) -> None:
        """Count a step that has ended, and add the time that it slept or was late."""
        self.steps += 1
        self.slept_s += paced.slept_s
        self.late_s = max(self.late_s, paced.late_s)
        self.late_steps += paced.is_late

    def rate(self, batch: int) -> dict[str, float]:
        """Return the samples per second of the steps so far, as measured, as a metric."""
        seconds = self.compute_s + self.slept_s
        return {"samples_per_s": batch * self.steps / seconds} if seconds else {}
