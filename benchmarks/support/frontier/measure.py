"""A cell of `benchmarks.frontier`: its run, emulated or simulated, and the figures of its records."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.support.campaign import first_step_s, load, run_of
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.frontier.cells import STAR, Cell
from benchmarks.support.netstorm import served
from testbed.run.conclusion.conclude import conclude
from testbed.run.conclusion.summary import late_part
from testbed.run.directory import RunDirectory
from testbed.run.terminal.display import Display
from testbed.run.view import declared_view
from testbed.simulation.simulate import check_supported, train
from testbed.spec.errors import SpecError
from testbed.spec.experiment import Experiment
from testbed.telemetry.store import read_records


def measure(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
    """Run a cell and return its figures."""
    with TemporaryDirectory() as folder, closing(RunDirectory("benchmark-frontier")) as directory:
        experiment = experiment_of(cell, Path(folder))
        if cell.simulated:
            # A cell that is only timed computes no gradients.
            outcome = train(experiment, directory, Display(Console(quiet=True)), gradients=not cell.timed)
        else:
            outcome = run_of(experiment, directory, server).execute()
        verdict = conclude(experiment, directory, outcome)
    judged = {"verdict": verdict["verdict"], "reasons": verdict["reasons"]}
    return {**figures_of(directory.path, experiment), **judged, "containers": not cell.simulated and server is None}


def experiment_of(cell: Cell, folder: Path) -> Experiment:
    """Write the cell's experiment into `folder` and load it; a star's server stands at the median place."""
    if cell.its is not STAR:
        return load(cell.experiment(), folder)
    experiment = load(cell.experiment(), folder)
    view = declared_view(experiment.topology, experiment.spec.round_bytes)
    seconds = served("one", view)
    server = sorted(seconds, key=seconds.__getitem__)[len(seconds) // 2]
    return load(cell.experiment({"options": {"keys": "one", "server": server}}), folder)


def able(cell: Cell) -> str | None:
    """Return why a cell can't be simulated, or None if it can be."""
    with TemporaryDirectory() as folder:
        try:
            check_supported(experiment_of(cell, Path(folder)), gradients=True)
        except SpecError as error:
            return str(error).splitlines()[0].partition(": ")[2]
    return None


def figures_of(directory: Path, experiment: Experiment) -> dict[str, Any]:
    """Return the figures of a run's records.

    Members of a reduction evaluate the result of a round, at its end. Members that gossip evaluate the model with which
    an iteration began, and report it at the iteration's end.

    Returns:
        curve: (seconds from the first step on, loss over the held-out samples, the worst site's loss). Losses
            are None where the training has diverged.
        round_s: The mean time of a round, without the first. None if there is no other.
        mean_bytes, most_bytes: Bytes that a member sent and received: the mean, and the member with the most.
    """
    at = "finished_s" if experiment.spec.sync.scheme.exchange == "all-reduce" else "started_s"
    reports = sorted(read_records(directory / "rounds.jsonl"), key=lambda report: float(report["finished_s"]))
    began = first_step_s(reports, experiment.spec.sync)
    declared = {worker.name: experiment.spec.compute.step_seconds(worker) for worker in experiment.topology.workers}
    learned = [(report[at] - began, report["metrics"]) for report in reports]
    moved: dict[str, int] = dict.fromkeys(declared, 0)
    ends: dict[int, float] = {}
    for report in reports:
        moved[report["member"]] += report["sent_bytes"] + report["received_bytes"]
        ends[report["round"]] = report["finished_s"]
    rounds = max(ends)
    return {
        "curve": [(at_s, its["test_loss"], its["worst_test_loss"]) for at_s, its in learned if "test_loss" in its],
        "rounds": rounds,
        "round_s": (ends[rounds] - ends[1]) / (rounds - 1) if rounds > 1 else None,
        "mean_bytes": mean(moved.values()),
        "most_bytes": max(moved.values()),
        "seconds": reports[-1]["finished_s"] - began,
        "late": late_part(reports, declared),
    }


def loss_of(figures: Mapping[str, Any]) -> float | None:
    """Return the loss of the last evaluation, or None if the training diverged."""
    loss = figures["curve"][-1][1]
    return None if loss is None else float(loss)
