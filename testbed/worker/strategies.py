"""The strategy that a job names, around a learner's steps, and how many steps its rounds take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from testbed.protocol import Job
from testbed.sync import Average, Nesterov, PowerSgd
from testbed.sync.decentralized.hybrid import accumulated
from testbed.sync.strategies import Gradients, LocalSgd, PostLocalSgd, Reducer, Strategy


def make(
    job: Job,
    reducer: Reducer,
    parameters: Sequence[torch.Tensor],
    samples: float | None = None,
    planned: Callable[[], int] | None = None,
) -> Strategy:
    """The strategy over the tensors that the members are to agree on; ValueError when there is none of the name.

    `planned` says how many local steps the hybrid's next round has for this member; else it is the job's `every`.
    Where data is not shared out evenly, each member counts as its `samples` do (p_i = n_i/Σn, as FedAvg has it), so
    that all the data counts evenly.
    """
    weight = float(job.batch) if job.partition == "iid" or samples is None else samples
    if job.strategy == "gradients":
        powersgd = PowerSgd(job.powersgd_rank) if job.powersgd_rank else None
        return Gradients(reducer, parameters, weight=weight, powersgd=powersgd)
    if job.strategy in ("local_sgd", "hierarchical"):
        return LocalSgd(reducer, parameters, every=job.every, outer=Average(), weight=weight)
    if job.strategy == "post_local_sgd":
        return PostLocalSgd(reducer, parameters, start=job.start, every=job.every, weight=weight)
    if job.strategy == "diloco":
        outer = Nesterov(job.outer_learning_rate, job.outer_momentum)
        fragments, delay = job.fragments, job.delay
        return LocalSgd(reducer, parameters, None, job.every, outer, fragments, delay, weight=weight)
    if job.strategy == "hybrid":
        outer = Nesterov(job.outer_learning_rate, job.outer_momentum)
        prox, overlap = job.prox, job.overlap
        due = partial(_due, job, planned or (lambda: job.every))
        return LocalSgd(reducer, parameters, outer=outer, weight=weight, prox=prox, overlap=overlap, due=due)
    raise ValueError(
        f"no such strategy: {job.strategy!r}; there are gradients, local_sgd, post_local_sgd, diloco, hierarchical "
        "and hybrid"
    )


def _due(job: Job, planned: Callable[[], int]) -> tuple[int, float]:
    """How many steps the next round has, and how many times the members' mean as the job has it they are, in length
    under a constant gradient; 1 if all count as they are. The mean is the same for all, whatever each takes."""
    steps = planned()
    if not job.steps:
        return steps, 1.0
    each = [accumulated(count, prox=job.prox) for count in job.steps]
    return steps, accumulated(steps, prox=job.prox) * len(each) / sum(each)


def over(job: Job, strategy: Strategy, taken: int) -> bool:
    """Whether training is over, so many steps of this member `taken`."""
    if job.strategy == "hybrid" and isinstance(strategy, LocalSgd):
        return strategy.periods >= job.rounds
    return taken >= steps(job)


def steps(job: Job) -> int:
    """How many steps have `job.rounds` rounds where nothing changes that while they go on, those at the end included
    that let all members agree.

    Streamed in n fragments, n − 1 of them have changed since their last round when training ends: as many rounds
    of the job are kept for them. Groups may settle in up to a period's rounds more.
    """
    if job.strategy == "gradients":
        return max(1, job.rounds // 2) if job.powersgd_rank else job.rounds
    if job.strategy == "post_local_sgd":
        return min(job.rounds, job.start) + max(0, job.rounds - job.start) * job.every
    return max(1, job.rounds - job.fragments + 1) * job.every // job.fragments
