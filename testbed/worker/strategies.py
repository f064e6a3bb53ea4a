"""The strategy that a job names, around a learner's steps, and how many steps its rounds take."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from testbed.protocol import Job
from testbed.sync import Average, Nesterov, PowerSgd
from testbed.sync.decentralized.hybrid import accumulated
from testbed.sync.strategies import Gradients, LocalSgd, PostLocalSgd, Reducer, Strategy


def make(job: Job, reducer: Reducer, parameters: Sequence[torch.Tensor], samples: float | None = None) -> Strategy:
    """The strategy over the tensors that the members are to agree on; ValueError when there is none of the name.

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
        work, prox, overlap = _work(job), job.prox, job.overlap
        return LocalSgd(
            reducer, parameters, None, job.every, outer, weight=weight, work=work, prox=prox, overlap=overlap
        )
    raise ValueError(
        f"no such strategy: {job.strategy!r}; there are gradients, local_sgd, post_local_sgd, diloco, hierarchical "
        "and hybrid"
    )


def _work(job: Job) -> float:
    """How many times the members' mean this one's local steps are, in length under a constant gradient; 1 if all
    count as they are."""
    if not job.steps:
        return 1.0
    each = [accumulated(steps, prox=job.prox) for steps in job.steps]
    return each[job.shard] * len(each) / sum(each)


def steps(job: Job) -> int:
    """How many steps have `job.rounds` rounds, those at the end included that let all members agree.

    Streamed in n fragments, n − 1 of them have changed since their last round when training ends: as many rounds
    of the job are kept for them. Groups may settle in up to a period's rounds more.
    """
    if job.strategy == "gradients":
        return max(1, job.rounds // 2) if job.powersgd_rank else job.rounds
    if job.strategy == "post_local_sgd":
        return min(job.rounds, job.start) + max(0, job.rounds - job.start) * job.every
    return max(1, job.rounds - job.fragments + 1) * job.every // job.fragments
