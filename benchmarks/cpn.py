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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from rich.console import Console

from benchmarks.cpn_protocols import ABLATIONS, BASELINES, EVENTS, OURS, PROTOCOLS, TOPOLOGY
from benchmarks.hop import ForkedRun
from benchmarks.kept import Kept
from benchmarks.nursery import Nursery
from benchmarks.paired import CONFIDENCE, Ratio, ratio
from benchmarks.table import Table, arguments, progress, show
from testbed.run.directory import RUNS, RunDirectory
from testbed.run.display import Display, Snapshot
from testbed.run.run import Run
from testbed.run.summary import wan_bytes
from testbed.run.verdict import STEP_OVERRUN
from testbed.spec.experiment import Experiment
from testbed.telemetry.store import read_records

KEPT = Kept(RUNS / "benchmark-cpn.json")
SEEDS, QUICK_SEEDS = 5, 1

#: 1 to 25 Mbit/s a link: a flat all-reduce of 0.5 MB then takes some four times as long as the slowest member's step.
SCALE = 0.05

#: More rounds than there is time for: runs end at the target.
ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class Goal:
    """The mean test loss that counts as learned, and the most that a cell may take."""

    loss: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned, and up to where; in cells with events further, so that most of a run comes after them.

    A step takes `step_s` at speed 1: the twelve members make 5.6 of them in that time, which has to take less than half
    of what a host of two cores can do.
    """

    train: Mapping[str, Any]
    step_s: float
    goal: Goal
    beyond: Goal


TASKS: Mapping[str, Task] = {
    # A step costs 4.3 ms: 20 % of two cores; with all that members send, evaluate and carry, 48 %.
    "text": Task(
        {"model": "gpt-small", "batch": 4, "optimizer": {"name": "adamw", "learning_rate": 0.002}},
        step_s=0.06,
        goal=Goal(2.7, 40.0),
        beyond=Goal(2.55, 70.0),
    ),
    # A step costs 3.1 ms: 17 % of two cores.
    "digits": Task(
        {"model": "cnn", "batch": 16, "optimizer": {"name": "adam", "learning_rate": 0.002}},
        step_s=0.05,
        goal=Goal(0.7, 25.0),
        beyond=Goal(0.5, 45.0),
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    task: str
    protocol: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.task}/{self.protocol}/{self.seed}"

    @property
    def goal(self) -> Goal:
        task = TASKS[self.task]
        return task.beyond if self.protocol in EVENTS else task.goal

    def experiment(self) -> dict[str, Any]:
        """The experiment file's value."""
        task, protocol = TASKS[self.task], PROTOCOLS[self.protocol]
        return {
            "name": "benchmark-cpn",
            "topology": str(TOPOLOGY),
            "scale": SCALE,
            "train": {
                **task.train,
                "rounds": ENDLESS,
                "partition": {"kind": "sites", "alpha": 0.1},
                "evaluate_every": protocol.evaluate_every,
            },
            "compute": {"step_time": f"{task.step_s * 1e3:g}ms"},
            "sync": dict(protocol.sync),
            "controller": {"period": "3s", "margin": 0.1, "dwell": 3, **protocol.controller},
            "events": list(protocol.events),
            "seed": self.seed,
        }


class Enough(Exception):
    """The target is reached, or the time is over."""


@dataclass
class Watch(Display):
    """Shows nothing, and ends the run when it is over."""

    console: Console = field(default_factory=lambda: Console(quiet=True))
    directory: Path = Path()
    goal: Goal = Goal(0.0, inf)

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
    time in which none of their steps was under way."""
    reports = sorted(read_records(directory / "rounds.jsonl"), key=lambda report: float(report["finished_s"]))
    began = min(report["started_s"] for report in reports)
    ended = reports[-1]["finished_s"]
    found = [(report["finished_s"] - began, report["metrics"]) for report in reports]
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


def seconds_to(goal: Goal, run: Mapping[str, Any]) -> float | None:
    """When what all agreed on was first as good as the goal; None when it never was."""
    return next((at_s for at_s, loss, _ in run["curve"] if loss <= goal.loss), None)


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


def cells(tasks: Sequence[str], seeds: int) -> Iterator[Cell]:
    """All cells, seed by seed."""
    for seed in range(1, seeds + 1):
        for task in tasks:
            yield from (Cell(task, protocol, seed) for protocol in PROTOCOLS)


def measured(found: Mapping[str, Any], task: str, protocol: str) -> dict[Cell, Any]:
    """What is known of a protocol, by cell."""
    cells = [Cell(task, protocol, seed) for seed in range(1, SEEDS + 1)]
    return {cell: found[cell.key] for cell in cells if cell.key in found}


def seconds(found: Mapping[str, Any], task: str, protocol: str) -> dict[int, float]:
    """Each seed's seconds to its goal; the limit where it was not reached by then."""
    runs = measured(found, task, protocol)
    return {cell.seed: seconds_to(cell.goal, run) or cell.goal.limit_s for cell, run in runs.items()}


def reached(found: Mapping[str, Any], task: str, protocol: str) -> list[float]:
    """The seconds of those that reached it."""
    runs = measured(found, task, protocol)
    return [at_s for cell, run in runs.items() if (at_s := seconds_to(cell.goal, run)) is not None]


def worst(found: Mapping[str, Any], task: str, protocol: str) -> dict[int, float]:
    """Each seed's loss at the worst site, when its run was over."""
    runs = measured(found, task, protocol)
    return {cell.seed: run["worst_loss"] for cell, run in runs.items() if run["worst_loss"] is not None}


def table(found: Mapping[str, Any], task: str) -> tuple[Table, dict[str, Any]]:
    """The protocols, the time of each over ours, and what stands beside it."""
    goal = TASKS[task].goal
    rows, figures = [], {}
    for protocol in (OURS, *BASELINES, *ABLATIONS):
        runs = list(measured(found, task, protocol).values())
        if not runs:
            continue
        learned = reached(found, task, protocol)
        times = ratio(seconds(found, task, protocol), seconds(found, task, OURS))
        losses = ratio(worst(found, task, protocol), worst(found, task, OURS))
        figures[protocol] = {
            "seconds_to_goal": mean(learned) if learned else None,
            "reached": len(learned),
            "seeds": len(runs),
            "slower": _figure(times),
            "worst_loss_over_ours": _figure(losses),
            "at_least": len(learned) < len(runs),
            **{name: _middle(runs, name) for name in ("wan_bytes", "idle", "cpu", "worst_loss")},
        }
        rows.append(_row(protocol, runs, learned, times, losses))
    columns = ["protocol", "s to goal", "reached", "× ours", "loss", "worst site's", "× ours"]
    columns += ["WAN MB", "MB/s", "idle", "CPU"]
    notes = [
        f"goal: test loss {goal.loss:g} within {goal.limit_s:g} s; what does not reach it counts as reaching it then "
        f"(>); interval: {CONFIDENCE:.0%}, paired by seed",
        f"baselines: {', '.join(BASELINES)}; ablations: {', '.join(ABLATIONS)}",
    ]
    return Table(f"Time to a loss of {goal.loss:g}: {task}, 12 members in 4 regions", columns, rows, notes), figures


def events_table(found: Mapping[str, Any], task: str) -> tuple[Table, dict[str, Any]]:
    """What follows when a region's links fall, with plans that change and with the first one held."""
    goal = TASKS[task].beyond
    follows, held = EVENTS
    rows, figures = [], {}
    for protocol in EVENTS:
        runs = list(measured(found, task, protocol).values())
        if not runs:
            continue
        learned = reached(found, task, protocol)
        times = ratio(seconds(found, task, protocol), seconds(found, task, follows))
        swaps = [run["rounds_to_swap"] for run in runs if run["rounds_to_swap"] is not None]
        figures[protocol] = {
            "seconds_to_goal": mean(learned) if learned else None,
            "reached": len(learned),
            "seeds": len(runs),
            "slower": _figure(times),
            "rounds_to_swap": swaps,
            "wan_bytes": _middle(runs, "wan_bytes"),
        }
        rows.append(
            [
                *_learned(protocol, runs, learned, times),
                ", ".join(map(str, swaps)) or "-",
                f"{mean(run['wan_bytes'] for run in runs) / 1e6:.1f}",
            ]
        )
    columns = ["", "s to goal", "reached", f"× {follows}", "rounds under the old plan", "WAN MB"]
    notes = [f"goal: test loss {goal.loss:g} within {goal.limit_s:g} s; {held}: no plan follows the first"]
    return Table(f"A region's links fall to a tenth: {task}", columns, rows, notes), figures


def _figure(times: Ratio | None) -> dict[str, Any] | None:
    if times is None:
        return None
    return {"ratio": times.value, "interval": [times.low, times.high] if times.pairs > 1 else None}


def _row(
    protocol: str,
    runs: Sequence[Mapping[str, Any]],
    learned: Sequence[float],
    times: Ratio | None,
    losses: Ratio | None,
) -> list[str]:
    return [
        *_learned(protocol, runs, learned, times),
        _said(_middle(runs, "loss"), ".3f"),
        _said(_middle(runs, "worst_loss"), ".3f"),
        "-" if losses is None else str(losses),
        f"{mean(run['wan_bytes'] for run in runs) / 1e6:.1f}",
        f"{mean(run['wan_bytes'] / run['seconds'] for run in runs) / 1e6:.2f}",
        _said(_middle(runs, "idle"), ".0%"),
        _said(_middle(runs, "cpu"), ".0%"),
    ]


def _learned(
    protocol: str, runs: Sequence[Mapping[str, Any]], learned: Sequence[float], times: Ratio | None
) -> list[str]:
    """A row's first cells: the seconds of those that reached the goal, how many did, and the ratio."""
    return [
        protocol,
        f"{mean(learned):.1f}" if learned else "-",
        f"{len(learned)}/{len(runs)}",
        "-" if times is None else f"{'>' if len(learned) < len(runs) else ''}{times}",
    ]


def _middle(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The mean over runs; those that have none are left out: nothing was evaluated before the time was over."""
    values = [run[name] for run in runs if run[name] is not None]
    return mean(values) if values else None


def _said(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def measure_missing(missing: Sequence[Cell], until_s: float, nursery: Nursery | None) -> None:
    """Measure these cells; none is begun when the monotonic clock is at `until_s`."""
    for number, cell in enumerate(missing, 1):
        if time.monotonic() > until_s:
            return
        found = measure(cell, nursery)
        learned = seconds_to(cell.goal, found)
        said = "not reached" if learned is None else f"{learned:.1f} s"
        loss = _said(found["loss"], ".3f")
        progress(f"{cell.key} ({number} of {len(missing)}): {said}, loss {loss}, {found['rounds']} rounds")
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
