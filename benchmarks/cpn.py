"""The CPN framework's hybrid synchronization against what else there is: twelve members, four regions, non-IID data.

    cell: a task, a protocol, a seed  --a run of its own, until the loss is reached or the time is over-->  figures

What is measured is the time from the first round until the agreed model's loss over the test set is at the task's
target; beside it the bytes over the WAN, the part of the members' time in which they do not compute, and the loss of
the worst site. The same seed has the same data at each site and the same first model in every protocol, and the traces
begin anew with each run, so cells are compared seed by seed. What was measured is kept in runs/benchmark-cpn.json and
not measured again; `--cells 1` measures one more and shows the table so far. `--forks` has the workers as processes in
the network's hosts, without the minute in which a dozen containers load PyTorch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from rich.console import Console

from benchmarks.hop import ForkedRun
from benchmarks.support.campaign import Kept
from benchmarks.support.cpn.cells import SEEDS, TASKS, Cell, Goal, cells
from benchmarks.support.cpn.protocols import PROTOCOLS
from benchmarks.support.cpn.tables import events_table, said, seconds_to, table
from benchmarks.support.forkserver import Nursery
from benchmarks.support.table import arguments, progress, show
from testbed.run.directory import RUNS, RunDirectory
from testbed.run.display import Display, Snapshot
from testbed.run.run import Run
from testbed.run.summary import wan_bytes
from testbed.run.verdict import STEP_OVERRUN
from testbed.spec.experiment import Experiment
from testbed.telemetry.store import read_records

KEPT = Kept(RUNS / "benchmark-cpn.json")
QUICK_SEEDS = 1


class Enough(Exception):
    """The target is reached, or the time is over."""


@dataclass(kw_only=True)
class Watch(Display):
    """Shows nothing, and ends the run when it is over."""

    console: Console = field(default_factory=lambda: Console(quiet=True))
    directory: Path
    goal: Goal

    def show(self, snapshot: Snapshot) -> None:
        reports = list(read_records(self.directory / "rounds.jsonl"))
        if not reports:
            return
        began = min(report["started_s"] for report in reports)
        losses = [report["metrics"].get("test_loss", inf) for report in reports]
        if min(losses) <= self.goal.loss or time.time() - began > self.goal.limit_s:
            raise Enough


def measure(cell: Cell, nursery: Nursery | None) -> dict[str, Any]:
    """Run a cell, in containers where there is no nursery; its figures."""
    directory = RunDirectory(f"benchmark-cpn-{cell.task}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_text(yaml.safe_dump(cell.experiment()))
        experiment = Experiment.load(file)
        run = Run(experiment, directory, Display()) if nursery is None else ForkedRun(experiment, directory, nursery)
        run.display = Watch(directory=directory.path, goal=cell.goal)
        with suppress(Enough):
            run.execute()
    directory.close()
    return figures_of(directory.path, experiment)


def figures_of(directory: Path, experiment: Experiment) -> dict[str, Any]:
    """What a run's records say. `curve` has (seconds, test loss, the worst site's); `idle` is the part of the members'
    time in which none of their steps was under way.

    Time begins when the first member is done with its first steps. What members of a reduction evaluate is what a round
    came to; without a centre, what an iteration began with, whose report is of its end.
    """
    reports = sorted(read_records(directory / "rounds.jsonl"), key=lambda report: float(report["finished_s"]))
    centred = experiment.spec.sync.scheme.exchange == "all-reduce"
    began = min(report["started_s"] + (0 if centred else report["compute_s"] + report["paced_s"]) for report in reports)
    ended = reports[-1]["finished_s"]
    found = [(report["finished_s" if centred else "started_s"] - began, report["metrics"]) for report in reports]
    curve = [(at_s, its["test_loss"], its["worst_test_loss"]) for at_s, its in found if its.get("test_loss")]
    declared = {worker.name: experiment.spec.compute.step_seconds(worker) for worker in experiment.topology.workers}
    busy_s = sum(report["compute_s"] + report["paced_s"] for report in reports)
    traffic = list(read_records(directory / "traffic.jsonl"))
    return {
        "seconds": ended - began,
        "rounds": reports[-1]["round"],
        "loss": curve[-1][1] if curve else None,
        "worst_loss": curve[-1][2] if curve else None,
        "wan_bytes": wan_bytes(traffic, began),
        "idle": 1 - busy_s / (len(declared) * (ended - began)),
        "cpu": mean(sample["cpu"] for sample in traffic),
        "plans": [plan_in_force(path) for path in sorted((directory / "plans").glob("*.json"))],
        "epochs": sorted({report["epoch"] for report in reports}),
        "rounds_to_swap": rounds_to_swap(reports, list(read_records(directory / "events.jsonl"))),
        "late": mean(is_late(report, declared[report["member"]]) for report in reports),
        "curve": curve,
    }


def is_late(report: Mapping[str, Any], step_s: float) -> bool:
    """Whether a step of a round made it longer than is tolerated of a step, or of all the steps of the round."""
    round_s: float = report["compute_s"] + report["paced_s"]
    return float(report["late_s"]) > STEP_OVERRUN * max(step_s, round_s)


def rounds_to_swap(reports: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> int | None:
    """How many rounds ended under the old plan, after what happened first, until another was in force; None where
    nothing happened, or none came into force."""
    if not events:
        return None
    at_s = min(event["at_s"] for event in events)
    over = [report for report in reports if report["finished_s"] <= at_s]
    epoch, number = (max((report[name] for report in over), default=0) for name in ("epoch", "round"))
    after = [report["round"] for report in reports if report["epoch"] > epoch]
    return min(after) - number - 1 if after else None


def plan_in_force(path: Path) -> dict[str, Any]:
    """What a stored plan says of groups."""
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


def measure_missing(missing: Sequence[Cell], until_s: float, nursery: Nursery | None) -> None:
    """Measure these cells; none is begun when the monotonic clock is at `until_s`."""
    for number, cell in enumerate(missing, 1):
        if time.monotonic() > until_s:
            return
        found = measure(cell, nursery)
        learned = seconds_to(cell.goal, found)
        when = "not reached" if learned is None else f"{learned:.1f} s"
        loss = said(found["loss"], ".3f")
        progress(f"{cell.key} ({number} of {len(missing)}): {when}, loss {loss}, {found['rounds']} rounds")
        KEPT.add(cell.key, found, containers=nursery is None)


def main() -> int:
    """Measure what is missing and show all; the exit code."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, help=f"how many seeds (default {SEEDS}; with --quick {QUICK_SEEDS})")
    parser.add_argument("--task", action="append", choices=TASKS, help="this task only (default: all)")
    parser.add_argument("--protocol", action="append", choices=PROTOCOLS, help="this protocol only (default: all)")
    parser.add_argument("--cells", type=int, help="measure this many of the missing cells at most")
    parser.add_argument("--seconds", type=float, default=inf, help="begin no cell later than this")
    parser.add_argument("--forks", action="store_true", help="processes in hosts instead of containers: starts at once")
    args = parser.parse_args()
    until_s = time.monotonic() + args.seconds
    tasks, found = args.task or list(TASKS), KEPT.read()
    wanted = cells(tasks, args.seeds or (QUICK_SEEDS if args.quick else SEEDS))
    chosen = args.protocol or PROTOCOLS
    missing = [cell for cell in wanted if cell.key not in found and cell.protocol in chosen][: args.cells]
    if missing:
        with Nursery() if args.forks else nullcontext() as nursery:
            measure_missing(missing, until_s, nursery)
    found = KEPT.read()
    tables = {task: table(found, task) for task in tasks}
    events = {task: events_table(found, task) for task in tasks}
    runs = {key: {name: value for name, value in run.items() if name != "curve"} for key, run in found.items()}
    repeats = max((each["seeds"] for _, figures in tables.values() for each in figures.values()), default=0)
    value = {
        "repeats": repeats,
        "tasks": {task: figures for task, (_, figures) in tables.items()},
        "events": {task: figures for task, (_, figures) in events.items()},
        "runs": runs,
    }
    show([one for task in tasks for one, _ in (tables[task], events[task])], value, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
