"""Training by gossip: a local step whenever the participant asks for one, from the parameters that it gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from testbed.protocol import Job, NodeConfiguration
from testbed.schemes import Scheme, named
from testbed.schemes.training import GossipTraining
from testbed.sync import flat
from testbed.sync.codecs import PLAIN, by_name
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.iteration_reporter import StepFigures
from testbed.sync.gossip.membership import Membership
from testbed.sync.rendezvous import Rendezvous, telling_failure
from testbed.worker.learner import Learner, chosen_device, make
from testbed.worker.pace import Pace, Slowness
from testbed.workload import Workload


def train(rendezvous: Rendezvous, scheme: Scheme, folder: Path) -> None:
    """Train by gossip, as the member's job says, until the job is done.

    Args:
        rendezvous: The member's connection to the controller, with its job.
        scheme: The job's scheme.
        folder: The folder of the data sets.

    Raises:
        SyncError: The member can't go on.
        Stopped: The controller stopped the training.
        ValueError: The job names a model, data set, optimizer or codec that does not exist.
    """
    torch.set_num_threads(1)
    with telling_failure(rendezvous):
        work = Workload.from_json(rendezvous.job.workload)
        model = make(work, folder, chosen_device(work.device))
        node = rendezvous.node
        steps = PacedSteps(model, work, node)
        participant = participant_of(rendezvous.name, tuple(rendezvous.welcome.roster), rendezvous.job, model)
        codec = by_name(node.rules.get("codec", PLAIN.name))
        membership = Membership(rendezvous, participant, steps.figures, codec, scheme.survives)
        steps.entered = lambda: membership.rounds
    with membership:
        flat.scatter(membership.train(steps), model.parameters)
        membership.finish(model.digest(), model.evaluate())


def participant_of(
    name: str, members: tuple[str, ...], job: Job, model: Learner, clock: Callable[[], float] = time.monotonic
) -> Participant:
    """Return the participant that gossips for a member.

    Args:
        name: The member's name.
        members: The names of all members.
        job: The member's job.
        model: The member's learner.
        clock: Returns the current time in seconds.
    """
    node, scheme = NodeConfiguration.from_json(job.assignment), named(job.scheme)
    training = GossipTraining(name, members, node, gathered(model), job.rounds, job.seed, model.samples, clock)
    participant: Participant = scheme.algorithm.build(scheme.read(job.options), training)
    return participant


class PacedSteps:
    """Steps of a learner from given parameters, each paced to its declared time.

    The parameters at the beginning of an iteration are evaluated in every `evaluate_every`-th iteration, or in the next
    one in which the member evaluates. The evaluation takes place in the time that the iteration's first step leaves.

    One thread makes the steps; another may call `figures` at any time.
    """

    def __init__(self, model: Learner, work: Workload, node: NodeConfiguration) -> None:
        #: Returns the iteration that the member has entered; without it, an iteration has the declared number of steps.
        self.entered: Callable[[], int] | None = None
        self._model = model
        self._node = node
        self._evaluate_every = work.evaluate_every
        self._evaluated = -1
        self._slowness = Slowness(work)
        self._pace = Pace(work.step_seconds)
        self._began_s = time.monotonic() - node.elapsed_s
        self._changing_figures = threading.Lock()
        self._figures = StepFigures()
        model.skip(node.first * node.steps)
        model.compute()  # PyTorch sets up its kernels at the first step, which would then be late

    def __call__(self, parameters: Tensor, iteration: int) -> Tensor:
        """Step by the next batch's gradient, paced to the declared time, and return the change of the parameters.

        Args:
            parameters: The parameters to step from, as a flat tensor on the host. The change has the same form.
            iteration: The number of the step from 0 on, counted over all iterations.
        """
        self._pace.begin()
        factor = self._slowness.factor(iteration + 1, time.monotonic() - self._began_s)
        began = time.monotonic()
        flat.scatter(parameters, self._model.parameters)
        metrics = self._model.compute()
        if self._is_due(iteration):
            metrics |= self._model.evaluate()
        self._model.apply()
        change = gathered(self._model).sub_(parameters)
        computed_s = time.monotonic() - began
        paced = self._pace.reach(factor)
        with self._changing_figures:
            before = self._figures
            steps = before.steps + 1
            self._figures = StepFigures(
                compute_s=before.compute_s + computed_s,
                paced_s=before.paced_s + paced.slept_s,
                late_s=max(before.late_s, paced.late_s),
                metrics={**before.metrics, **metrics, "steps": float(steps)},
                steps=steps,
                late_steps=before.late_steps + paced.is_late,
            )
        return change

    def _is_due(self, step: int) -> bool:
        """Return whether to evaluate before a step, counted over all iterations; if so, count it as done."""
        if self._node.evaluates is None:
            return False
        entered = step // self._node.steps if self.entered is None else self.entered()
        period, phase = self._node.evaluates
        # A member that skips iterations may skip the one with an evaluation.
        if entered % period != phase or entered // self._evaluate_every <= self._evaluated:
            return False
        self._evaluated = entered // self._evaluate_every
        return True

    def figures(self) -> StepFigures:
        """Return the figures of the steps since the last call."""
        with self._changing_figures:
            figures, self._figures = self._figures, StepFigures()
        return figures


def gathered(model: Learner) -> Tensor:
    """Return a copy of the learner's parameters as one flat tensor on the host."""
    return flat.gather(model.parameters).cpu()
