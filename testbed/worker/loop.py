"""Training by averaged gradients: compute, wait for the declared time, reduce, step; round after round."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from testbed import sync
from testbed.worker import learner
from testbed.worker.learner import Learner
from testbed.worker.pace import Pace


def device() -> str:
    """What this worker can compute on: `cuda` or `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def work(session: sync.Session, folder: Path) -> None:
    """Do the session's job to the end.

    SyncError when the members can't go on, Stopped when the controller said so, ValueError when the job asks for
    what does not exist.
    """
    torch.set_num_threads(1)
    if session.job.strategy != "gradients":
        raise ValueError(f"no such strategy: {session.job.strategy!r}; there is gradients")
    model = learner.make(session.job, folder, _device(session.job.device))
    metrics = train(session, model)
    session.finish(model.digest(), metrics)


def train(session: sync.Session, model: Learner) -> dict[str, float]:
    """All rounds of the session's job; the last one's metrics.

    All members hold the same bits, so the first one evaluates for all. What is done between two reductions counts
    towards the declared step, so that an evaluation hides in the time that is slept.
    """
    job = session.job
    evaluates = session.name == session.members[0]
    metrics: dict[str, float] = {}
    model.compute()  # PyTorch sets up its kernels at the first step, which would then be late
    pace = Pace(job.step_seconds)
    compute_s = 0.0
    for number in range(1, job.rounds + 1):
        began = time.monotonic()
        metrics = model.compute()
        compute_s += time.monotonic() - began
        paced = pace.reach()
        session.allreduce(model.gradient, weight=job.batch)
        pace.begin()
        applied = time.monotonic()
        model.apply()
        applied = time.monotonic() - applied
        if evaluates and (number % job.evaluate_every == 0 or number == job.rounds):
            metrics |= model.evaluate()
        session.report(metrics, compute_s=compute_s, paced_s=paced.slept_s, late_s=paced.late_s)
        compute_s = applied
    return metrics


def _device(wanted: str) -> torch.device:
    return torch.device(device() if wanted == "auto" else wanted)
