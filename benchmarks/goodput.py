"""Measure what faults cost: samples per second under faults, as a fraction of the same members' without faults.

    sudo python -m benchmarks.goodput [--minutes M] [--seeds N] [--only SYSTEM] [--python PATH]

    cell: a system, a seed, faults or none  --`testbed run`, for some minutes-->  the samples that counted, and losses

Sixteen members train a GPT of 0.8 M parameters over a network of the class `regions` of `benchmarks.replanning`, whose
sites have two or three workers here. Each step has a declared time. Every 30 s a fault strikes, the same in all
systems with the same seed: a member is killed and started again, stopped for 0.5 to 5 s, or cut off for 5 to 20 s; or
a link has a tenth of its rate for 20 s. No fault strikes the first member or the one that the others reach best, since
rendezvous, torchft's lighthouse, hivemind's first address and Decoupled DiLoCo's syncer live there.

A sample counts when the round that it went into is over at its member, whichever member that is. A round under way at
the cell's beginning or end, and over within 20 s more, counts by the share of its duration that lies within the cell's
time. Samples of a round that was lost or discarded do not count, and those of steps that torchrun's workers repeat from
a checkpoint count once. So a dead member adds no samples. The loss is over the test set, at the number of samples that
the run with faults reached last, against the run without. For systems whose members reduce in rounds here, 1,024
elements of each contribution and each mean are recorded, and the checker of `tests.chaos` looks for wrong means in
them.

Cells are kept in runs/benchmark-goodput.json and not measured again, unless they failed. Their run directories stay
below runs/benchmark-goodput. hivemind and torchft are not installed with the rest: `--python` names an interpreter that
has them beside PyTorch and this package. `--quick` measures a minute of each, with a fault every 15 s.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isnan, nan
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import yaml
from numpy import interp

from benchmarks.support.campaign import Campaign, without_curves
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.goodput import settings
from benchmarks.support.goodput.faults import drawn
from benchmarks.support.options import Options
from benchmarks.support.paired import ratio
from benchmarks.support.program import run_program
from benchmarks.support.systems.cells import System
from benchmarks.support.table import Table, progress, show
from benchmarks.support.wans import TOPOLOGY, Wan
from testbed.run.directory import RUNS
from testbed.run.view import declared_view
from testbed.schemes.assignment import best_reached
from testbed.spec.topology import Topology
from testbed.spec.train import PARAMETERS
from testbed.telemetry.store import read_records
from testbed.workload import STEP_OVERRUN
from tests.chaos import checker
from tests.chaos.case import Case
from tests.chaos.history import Execution, History
from tests.chaos.nemesis import Nemesis
from tests.chaos.targets import Targets
from tests.run.running import PROGRAM, Running

#: The most of a cell's rounds with steps that took longer than declared. Stops and restarts make a few of them. Beyond
#: it the table says so: a system that takes much of the processors delays its own steps, and other work may, too.
MOST_LATE = 0.1
CAMPAIGN = Campaign(RUNS / "benchmark-goodput.json")
DIRECTORIES = RUNS / "benchmark-goodput"
SEEDS, MINUTES, QUICK_MINUTES = 3, 5.0, 1.0
SITES = 6

#: From the start until all members train: sixteen interpreters load PyTorch on two processors, and meet over the WAN.
START_S = 180.0
#: How long a cell's last rounds may end after its time. Whole rounds are too coarse: a cell of 180 s has a dozen.
AFTER_S = 20.0
#: From Ctrl-C until a run has ended and removed everything.
END_S = 120.0
LOOK_S = 0.05

#: Fields of `sync`, for the testbed's own systems; others are programs.
LOCAL = {"every": settings.EVERY, "outer": {"learning_rate": settings.OUTER, "momentum": settings.MOMENTUM}}
OWN: Mapping[str, Mapping[str, Any]] = {
    "gradients": {"strategy": "gradients"},
    "diloco": {"strategy": "diloco", **LOCAL},
    "decoupled_diloco": {"strategy": "decoupled_diloco", **LOCAL, "fragments": settings.EVERY},
    "hop": {"strategy": "hop", "graph": "ring", "backup": 1, "max_ig": 4},
}
#: Those of them whose members reduce in rounds, so that there are means to check.
REDUCE = ("gradients", "diloco")
OTHERS: Mapping[str, System] = {
    "torchrun": System(()),
    "torchft": System((), modules=("torchft",)),
    "hivemind": System((), modules=("hivemind",)),
}
#: Iterations of Hop from one evaluation to the next. All members evaluate, each for half a second of a processor.
EVALUATE_HOP = 20
SYSTEMS = (*OWN, *OTHERS)
MEMBER = "benchmarks.support.goodput.members"
#: The rules of `tests.chaos` on means.
ON_MEANS = (checker.means_are_right, checker.members_hold_the_same_bits, checker.slices_are_of_all_members)


@dataclass(frozen=True, slots=True)
class Cell:
    """A run of a system, with faults or without, for some minutes."""

    system: str
    seed: int
    faulty: bool
    minutes: float

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        return f"{self.system}/{self.seed}/{'faults' if self.faulty else 'none'}/{self.minutes:g}min"

    def write(self, folder: Path, python: str) -> tuple[Topology, dict[str, Any]]:
        """Write the experiment and its network into a folder, and return the network and the experiment's value."""
        Wan("regions", SITES, self.seed).write(folder)
        topology = yaml.safe_load((folder / TOPOLOGY).read_text())
        sites = list(topology["sites"].values())
        for number, site in enumerate(sites):
            site["workers"] = settings.MEMBERS // SITES + (number < settings.MEMBERS % SITES)
        (folder / TOPOLOGY).write_text(yaml.safe_dump(topology, sort_keys=False))
        value: dict[str, Any] = {"name": f"goodput-{self.system.replace('_', '-')}", "topology": TOPOLOGY}
        value |= {"seed": self.seed, **(self._own() if self.system in OWN else self._other(folder, python))}
        (folder / "experiment.yaml").write_text(yaml.safe_dump(value))
        return Topology.load(folder / TOPOLOGY), value

    def _own(self) -> dict[str, Any]:
        sync = OWN[self.system]
        every = (
            settings.EVALUATE_ROUNDS
            if "every" in sync
            else EVALUATE_HOP
            if "backup" in sync
            else settings.EVALUATE_STEPS
        )
        optimizer = {"name": settings.OPTIMIZER, "learning_rate": settings.LEARNING_RATE}
        train = {"model": settings.MODEL, "batch": settings.BATCH, "optimizer": optimizer, "device": "cpu"}
        return {
            "train": {**train, "rounds": 1_000_000, "evaluate_every": every},
            "compute": {"step_time": f"{settings.STEP_S * 1e3:g}ms"},
            "sync": dict(sync),
            "elastic": {"quorum": settings.QUORUM, "lost": "restart"},
        }

    def _other(self, folder: Path, python: str) -> dict[str, Any]:
        environment = {settings.SEED: str(self.seed), settings.CHECKPOINT: str(folder / "checkpoint.pt")}
        return {"train": {"command": [python, "-m", MEMBER, self.system], "on_host": True, "environment": environment}}


def measure(cell: Cell, _: ForkServer | None, *, python: str) -> dict[str, Any]:
    """Run a cell, and return its figures."""
    folder = (DIRECTORIES / cell.key.replace("/", "-")).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    topology, value = cell.write(folder, python)
    names = tuple(worker.name for worker in topology.workers)
    case = Case(cell.seed, 0, False, yaml.safe_load((folder / TOPOLOGY).read_text()), value, ())
    own, seconds, injections = cell.system in OWN, 60 * cell.minutes, []
    program = (sys.executable, "-m", "tests.chaos.program") if own else PROGRAM
    with Running(folder, str(folder / "experiment.yaml"), program=program) as running:
        try:
            began_s = _began(running, own)
            if began_s is not None:
                spared = {names[0], best_reached(declared_view(topology, 4 * PARAMETERS[settings.MODEL]))}
                struck = [name for name in names if name not in spared]
                planned = drawn(cell.seed, struck, list(topology.links), seconds, began_s) if cell.faulty else []
                nemesis = Nemesis(replace(case, faults=tuple(planned)), Targets(running, names, (), None))
                injections = nemesis.injections
                while time.time() < began_s + seconds + AFTER_S and running.process.poll() is None:
                    nemesis.look()
                    time.sleep(LOOK_S)
            early = running.process.poll() is not None
        finally:
            _end(running)
    if began_s is None:
        progress(running.output[-2000:])
        return {"failed": f"its members did not all train within {START_S:g} s", "containers": False, "late": 0.0}
    rounds = list(own_rounds(running.directory) if own else told_rounds(running.directory))
    found: dict[str, Any] = {**figures_of(rounds, began_s, seconds), "containers": False, "wrong": None}
    found["faults"] = [{"fault": str(it.fault), "s": it.began_s - began_s, "missed": it.missed} for it in injections]
    found["ended"] = running.output[-600:] if early else None
    if cell.system in REDUCE:
        execution = Execution(running.process.returncode, running.output, running.directory, 0.0, (), (), ())
        history = History.read(case, execution)
        wrong = [finding for rule in ON_MEANS for finding in rule(history)]
        found |= {"wrong": len(wrong), "means": len(history.results), "findings": wrong[:5]}
    progress(
        f"  {found['samples_per_s']:.1f} samples/s, {len(injections)} faults, wrong means: {found['wrong']}"
        + (f"; it ended early: {found['ended']}" if early else "")
    )
    return found


def _began(running: Running, own: bool) -> float | None:
    """Wait until all members train, and return since when, in Unix time; None if they do not, or the run ends."""
    until_s = time.monotonic() + START_S
    while running.process.poll() is None and time.monotonic() < until_s:
        time.sleep(LOOK_S)
        if own:
            with suppress(OSError, ValueError, KeyError):  # the manifest is not there yet
                return float(json.loads((running.directory / "manifest.json").read_text())["training_started_s"])
            continue
        first: dict[str, float] = {}
        for told in told_lines(running.directory):
            if "began" in told:
                first.setdefault(told["member"], told["at"])
        if len(first) == settings.MEMBERS:
            return max(first.values())
    return None


def _end(running: Running) -> None:
    """End the run as Ctrl-C does; clean up after a run that does not end."""
    if running.process.poll() is not None:
        return
    os.killpg(running.process.pid, signal.SIGINT)
    try:
        running.process.wait(END_S)
    except subprocess.TimeoutExpired:
        running.process.kill()
        running.process.wait()
        subprocess.run([*PROGRAM, "network", "clean", "--name", running.directory.name], check=False)


class Round(NamedTuple):
    """A round that was over at a member. Without samples, the member's rounds after it are undone."""

    at_s: float
    member: str
    number: int
    samples: float | None
    loss: float | None = None
    late: bool = False


def own_rounds(directory: Path) -> Iterator[Round]:
    """Yield the rounds of a run's reports."""
    for report in read_records(directory / "rounds.jsonl"):
        metrics, spent_s = report["metrics"], report["compute_s"] + report["paced_s"]
        steps = metrics.get("steps")  # of members that gossip
        samples = metrics.get("samples_per_s", 0.0) * spent_s if steps is None else settings.BATCH * steps
        late = report["late_s"] > STEP_OVERRUN * max(settings.STEP_S, spent_s)
        loss = metrics.get("test_loss")
        if loss is None and "test_loss" in metrics:
            loss = nan  # the training diverged
        yield Round(report["finished_s"], report["member"], report["round"], samples, loss, late)


def told_rounds(directory: Path) -> Iterator[Round]:
    """Yield the rounds that programs reported."""
    for told in told_lines(directory):
        if "resumed" in told:
            yield Round(told["at"], told["member"], told["resumed"], None)
        elif "samples" in told:
            members = settings.MEMBERS if told["member"] == settings.TOGETHER else 1
            steps = told["samples"] / members / settings.BATCH
            loss, late = told.get("test_loss"), told["late_s"] > STEP_OVERRUN * settings.STEP_S * steps
            yield Round(told["at"], told["member"], told["round"], told["samples"], loss, late)


def told_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines that programs of `members` printed; other output, and what a kill cut short, is left out."""
    for log in sorted((directory / "logs").glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict) and "member" in told:
                    yield told


def figures_of(rounds: Iterable[Round], began_s: float, seconds: float) -> dict[str, Any]:
    """Return the figures of the rounds within the time. Each round of a member counts once.

    A round under way at the beginning or the end counts by the share of its duration that lies within the time. It
    began as the member's previous round ended, or at `began_s`.

    Members that began before the last one may have trained already. Their rounds until `began_s` are a part of the
    curve, since the model has learned from their samples, and of no other figure.

    `late` is the part of the rounds with steps that took longer than declared, of those that ended in the time.
    `curve` has (samples of all members, mean of the members' newest losses) at each evaluation.
    """
    counted: dict[tuple[str, int], float] = {}
    within: dict[tuple[str, int], float] = {}
    newest_s: dict[str, float] = {}
    losses: dict[str, float] = {}
    late: list[bool] = []
    curve: list[tuple[float, float]] = []
    end_s = began_s + seconds
    for its in sorted(rounds, key=lambda its: its.at_s):
        if its.at_s > end_s + AFTER_S:
            break
        start_s, newest_s[its.member] = newest_s.get(its.member, began_s), its.at_s
        if its.samples is None:
            if its.at_s <= end_s:
                counted, within = (
                    {key: value for key, value in of.items() if key[0] != its.member or key[1] <= its.number}
                    for of in (counted, within)
                )
                curve = [point for point in curve if point[0] <= sum(counted.values())]
            continue
        inside_s = min(its.at_s, end_s) - max(start_s, began_s)
        within[its.member, its.number] = its.samples * inside_s / (its.at_s - start_s) if inside_s > 0 else 0.0
        if its.at_s > end_s:
            continue
        counted[its.member, its.number] = its.samples
        if its.at_s > began_s:
            late.append(its.late)
        if its.loss is not None:
            losses[its.member] = its.loss
            curve.append((sum(counted.values()), mean(losses.values())))
    total = sum(within.values())
    return {"samples": total, "samples_per_s": total / seconds, "curve": curve, "late": mean(late or [0.0])}


def loss_difference(faulty: Mapping[str, Any], free: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the number of samples that both runs reached, and the faulty run's loss there over the other's, less 1.

    Losses between two evaluations are interpolated. None if the runs have no such number, or one of them diverged.
    """
    curves = [its["curve"] for its in (faulty, free)]
    if not all(curves) or any(loss is None or isnan(loss) for curve in curves for _, loss in curve):
        return None
    samples = min(curve[-1][0] for curve in curves)
    if samples < max(curve[0][0] for curve in curves):
        return None
    losses = [float(interp(samples, [at for at, _ in curve], [loss for _, loss in curve])) for curve in curves]
    return samples, losses[0] / losses[1] - 1


def table(names: Sequence[str], found: Mapping[Cell, Any], reasons: Mapping[str, str], minutes: float) -> Table:
    """Return the table with a row a system, over the seeds of which both runs are measured."""
    rows = [[name, *[""] * 5, f"left out: {reason}"] for name, reason in reasons.items()]
    for name in names:
        cells = {(cell.seed, cell.faulty): its for cell, its in found.items() if cell.system == name}
        failed = [f"failed: {its['failed']}" for its in cells.values() if "failed" in its]
        whole = {key: its for key, its in cells.items() if "failed" not in its}
        seeds = sorted({seed for seed, _ in whole if {(seed, True), (seed, False)} <= whole.keys()})
        if not seeds:
            rows += [[name, *[""] * 5, failed[0]]] if failed else []
            continue
        faulty, free = ({seed: whole[seed, kind] for seed in seeds} for kind in (True, False))
        rates = [{seed: its["samples_per_s"] for seed, its in kind.items()} for kind in (faulty, free)]
        losses = [it for seed in seeds if (it := loss_difference(faulty[seed], free[seed]))]
        runs = [*faulty.values(), *free.values()]
        wrong = [its["wrong"] for its in runs if its["wrong"] is not None]
        ended = sum(its["ended"] is not None for its in runs)
        late = max(its["late"] for its in runs)
        said = [
            *([f"{ended} of {len(runs)} runs ended early"] if ended else []),
            *([f"up to {late:.0%} of rounds with late steps"] if late > MOST_LATE else []),
        ]
        rows.append(
            [
                name,
                f"{mean(rates[1].values()):.1f}",
                f"{mean(rates[0].values()):.1f}",
                str(ratio(*rates)) if all(rates[0].values()) and all(rates[1].values()) else "0",
                f"{100 * mean(its[1] for its in losses):+.1f} % at {mean(its[0] for its in losses):,.0f}"
                if losses
                else "",
                f"{sum(wrong)} of {sum(its['means'] for its in runs if its['wrong'] is not None):,}" if wrong else "",
                "; ".join([*said, *failed]),
            ]
        )
    columns = ("", "samples/s without faults", "with faults", "ratio", "loss at samples", "wrong means", "")
    note = "a sample counts when its round is over at its member; ratio: paired by seed, with its 95 % interval"
    return Table(f"{settings.MEMBERS} members, regions-{SITES}, {minutes:g} min a run", columns, rows, [note])


def main() -> int:
    """Measure the missing cells and print all. Returns the exit code: 1 if a mean was wrong."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the run under way is ended first
    parser = Options(__doc__)
    parser.add_seeds(SEEDS)
    parser.add_argument(
        "--minutes", type=float, help=f"of each run (default {MINUTES:g}; with --quick {QUICK_MINUTES:g})"
    )
    parser.add_sittings()
    parser.add_argument("--only", action="append", choices=SYSTEMS, metavar="SYSTEM", help="this one; may be repeated")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of torchrun, torchft and hivemind")
    args = parser.parse()
    if args.minutes is not None and not 0 < args.minutes < inf:
        parser.error(f"--minutes {args.minutes:g}: no run takes that long; write more than 0, such as 1")
    minutes = args.minutes or (QUICK_MINUTES if args.quick else MINUTES)
    names = args.only or list(SYSTEMS)
    reasons = {name: reason for name in names if name in OTHERS and (reason := OTHERS[name].missing(args.python))}
    for name, reason in reasons.items():
        progress(f"{name} is left out: {reason}")
    cells = [
        Cell(name, seed, faulty, minutes)
        for seed in range(1, args.seeds + 1)
        for name in names
        if name not in reasons
        for faulty in (False, True)
    ]
    CAMPAIGN.measure(cells, partial(measure, python=args.python), forks=False, most=args.cells, seconds=args.seconds)
    known = CAMPAIGN.read()
    found = {cell: known[cell.key] for cell in cells if cell.key in known}
    shown = without_curves({cell.key: its for cell, its in found.items()})
    show(
        [table([name for name in names if name not in reasons], found, reasons, minutes)],
        {"repeats": args.seeds, "minutes": minutes, "missing": reasons, "cells": shown},
        as_json=args.json,
    )
    return 1 if any(its.get("wrong") for its in found.values()) else 0


if __name__ == "__main__":
    run_program(main)
