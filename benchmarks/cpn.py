"""Compare the CPN framework's hybrid synchronization with other schemes: twelve members, four regions, non-IID data.

    sudo python -m benchmarks.cpn [--task NAME] [--protocol NAME] [--forks]
    python -m benchmarks.cpn --simulated [--scales 0.03,0.1] [--task NAME]

    cell: a task, a protocol, a seed  --a run of its own, until the loss is reached or the time is over-->  figures

A cell's figure is the time from the first step until the agreed model's loss over the test set is at the task's
target. Beside it stand the bytes over the WAN, the part of the members' time in which they do not compute, and the loss
of the worst site. A row is a protocol. In every protocol the same seed has the same data at each site and the same
first model, and traces begin again with each run, so cells are compared seed by seed.

Measured cells are kept in runs/benchmark-cpn.json and not measured again; `--cells 1` measures one more and shows the
table so far. A seed of one task takes fifteen minutes. `--forks` runs the workers as processes in the network's hosts,
which spares the minute in which a dozen containers load PyTorch.

`--simulated` compares the hybrid with a flat all-reduce and `auto` where links are slower or faster, with gradients on
simulated time, and compares the rule of docs/schemes.md with the cells. A cell takes 20 s of a processor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from math import inf
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.support.campaign import (
    Campaign,
    Enough,
    Watch,
    first_step_s,
    load,
    run_of,
    seconds_to,
    without_curves,
)
from benchmarks.support.cpn.cells import SCALES, SEEDS, SIMULATED_SEEDS, TASKS, Cell, Goal, cells, simulated_cells
from benchmarks.support.cpn.protocols import PROTOCOLS
from benchmarks.support.cpn.tables import events_table, rule_table, said, table
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import progress, show
from testbed.run.conclusion.summary import late_part, wan_bytes
from testbed.run.conclusion.verdict import STEP_OVERRUN_SHARE
from testbed.run.directory import RUNS, RunDirectory
from testbed.simulation.simulate import train
from testbed.spec.experiment import Experiment
from testbed.telemetry.store import read_records

CAMPAIGN = Campaign(RUNS / "benchmark-cpn.json", most_late=STEP_OVERRUN_SHARE)


def enough(goal: Goal, directory: Path) -> bool:
    """Return whether a run's records show that the goal is reached or its time is over."""
    reports = list(read_records(directory / "rounds.jsonl"))
    if not reports:
        return False
    began = min(report["started_s"] - report["compute_s"] - report["paced_s"] for report in reports)
    losses = [report["metrics"].get("test_loss") for report in reports]
    lasted_s = max(report["finished_s"] for report in reports) - began
    # The loss of a training that diverged is recorded as None.
    least = min((loss for loss in losses if loss is not None), default=inf)
    return bool(least <= goal.loss or lasted_s > goal.limit_s)


def measure(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
    """Run a cell and return its figures; without a fork server, in containers."""
    with TemporaryDirectory() as folder, closing(RunDirectory(f"benchmark-cpn-{cell.task}")) as directory:
        experiment = load(cell.experiment(), Path(folder))
        over = partial(enough, cell.goal)
        with suppress(Enough):
            if cell.simulated:
                watch = Watch(directory=directory.path, enough=over)
                train(experiment, directory, watch, gradients=True, until_s=cell.goal.limit_s)
            else:
                run_of(experiment, directory, server, over).execute()
    found = figures_of(directory.path, experiment)
    learned = seconds_to(cell.goal.loss, found)
    when = "not reached" if learned is None else f"{learned:.1f} s"
    progress(f"  {when}, loss {said(found['loss'], '.3f')}, {found['rounds']} rounds")
    return found


def figures_of(directory: Path, experiment: Experiment) -> dict[str, Any]:
    """Return the figures of a run's records.

    `curve` has (seconds, test loss, the worst site's test loss), and None for losses where the training has diverged;
    `idle` is the part of the members' time in which none of their steps was under way. Time begins with the first
    step. With all-reduce, members evaluate the result of a round. In gossip they
    evaluate the model that an iteration began with, and report it at the iteration's end.
    """
    reports = sorted(read_records(directory / "rounds.jsonl"), key=lambda report: float(report["finished_s"]))
    centred = experiment.spec.sync.scheme.exchange == "all-reduce"
    began = first_step_s(reports, experiment.spec.sync)
    ended = reports[-1]["finished_s"]
    found = [(report["finished_s" if centred else "started_s"] - began, report["metrics"]) for report in reports]
    curve = [(at_s, its["test_loss"], its["worst_test_loss"]) for at_s, its in found if "test_loss" in its]
    declared = {worker.name: experiment.spec.compute.step_seconds(worker) for worker in experiment.topology.workers}
    busy_s = sum(report["compute_s"] + report["paced_s"] for report in reports)
    traffic = list(read_records(directory / "traffic.jsonl"))
    plans = [plan_in_force(path) for path in sorted((directory / "plans").glob("*.json"))]
    periods = {plan["epoch"]: plan["period"] for plan in plans}
    under = rounds_to_swap(reports, list(read_records(directory / "events.jsonl")), periods)
    return {
        "seconds": ended - began,
        "rounds": reports[-1]["round"],
        "loss": curve[-1][1] if curve else None,
        "worst_loss": curve[-1][2] if curve else None,
        "wan_bytes": wan_bytes(traffic, began),
        "idle": 1 - busy_s / (len(declared) * (ended - began)),
        "cpu": None if any(sample["cpu"] is None for sample in traffic) else mean(sample["cpu"] for sample in traffic),
        "plans": plans,
        "epochs": sorted({report["epoch"] for report in reports}),
        "rounds_to_swap": under.number if under else None,
        "rounds_inside": under.inside if under else None,
        "late": late_part(reports, declared),
        "curve": curve,
    }


class UnderOldPlan(NamedTuple):
    """Rounds that ended under the plan in force when an event happened: all, and those inside groups."""

    number: int
    inside: int


def rounds_to_swap(
    reports: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], periods: Mapping[int, int]
) -> UnderOldPlan | None:
    """Count the rounds under the old plan, from the first event until another plan was in force.

    Args:
        reports: The members' round reports.
        events: The run's events.
        periods: The period of each plan, by epoch.

    Returns:
        The rounds, or None without an event or without another plan.
    """
    if not events:
        return None
    at_s = min(event["at_s"] for event in events)
    over = [report for report in reports if report["finished_s"] <= at_s]
    epoch, number = (max((report[name] for report in over), default=0) for name in ("epoch", "round"))
    after = [report["round"] for report in reports if report["epoch"] > epoch]
    if not after:
        return None
    under = range(number + 1, min(after))
    return UnderOldPlan(len(under), sum(its % periods.get(epoch, 1) != 0 for its in under))


def plan_in_force(path: Path) -> dict[str, Any]:
    """Return the epoch, period, codecs, groups and steps of a stored plan."""
    plan = json.loads(path.read_text())
    codecs = sorted(set(plan["link_codecs"].values()))
    groups = [group["members"] for group in plan["groups"]]
    return {
        "epoch": plan["epoch"],
        "period": plan["period"],
        "codecs": codecs,
        "groups": groups,
        "steps": plan["steps"],
    }


def factors(text: str) -> list[float]:
    """Return the factors of a list such as `0.03,0.1`."""
    return [float(factor) for factor in text.split(",")]


def main() -> int:
    """Measure the missing cells and print all. Returns the exit code."""
    parser = Options(__doc__)
    parser.add_campaign(SEEDS, SIMULATED_SEEDS)
    parser.add_argument("--task", action="append", choices=TASKS, help="this task only (default: all)")
    parser.add_argument("--protocol", action="append", choices=PROTOCOLS, help="this protocol only (default: all)")
    parser.add_argument("--simulated", action="store_true", help="simulate three protocols at several rates of links")
    parser.add_argument("--scales", type=factors, default=SCALES, help="factors on the rates of links, with commas")
    args = parser.parse()
    tasks = args.task or list(TASKS)
    if args.simulated:
        if args.protocol:
            parser.error("--protocol: --simulated compares the same three protocols always; leave one of the two out")
        ones = list(simulated_cells(tasks, args.scales, args.seeds))
        CAMPAIGN.measure(ones, measure, forks=False, most=args.cells, seconds=args.seconds)
        shown, figures = rule_table(CAMPAIGN.read(), ones)
        show([shown], {"repeats": args.seeds, "cells": figures}, as_json=args.json)
        return 0
    chosen = [cell for cell in cells(tasks, args.seeds) if cell.protocol in (args.protocol or PROTOCOLS)]
    CAMPAIGN.measure(chosen, measure, forks=args.forks, most=args.cells, seconds=args.seconds)
    found = CAMPAIGN.read()
    tables = {task: table(found, task) for task in tasks}
    events = {task: events_table(found, task) for task in tasks}
    repeats = max((each["seeds"] for _, figures in tables.values() for each in figures.values()), default=0)
    value = {
        "repeats": repeats,
        "tasks": {task: figures for task, (_, figures) in tables.items()},
        "events": {task: figures for task, (_, figures) in events.items()},
        "runs": without_curves(found),
    }
    show([one for task in tasks for one, _ in (tables[task], events[task])], value, as_json=args.json)
    return 0


if __name__ == "__main__":
    run_program(main)
