"""Compare how soon systems learn over a WAN: DDP over gloo and over `wan`, others' local SGD, and our schemes.

    sudo python -m benchmarks.systems [--network NAME] [--system NAME] [--python PATH]

    cell: a network, a system, a seed  --`testbed launch` of examples/gpt.py, to the loss or the time's end-->  figures

A row is a system on a network. Its time lasts from the script's first evaluation until the loss over held-out text is
at the target; its bytes are those over the WAN meanwhile. gloo, `wan` and this library's schemes run the script
unchanged: an option of `launch` selects them. PostLocalSGDOptimizer, hivemind and torchft need the script changed, as
their documentation has it. All systems with local steps take as many of them. Processes share the machine's processors,
no step is paced, and each network's traces begin again with each cell. Cells are kept in runs/benchmark-systems.json
and not measured again, unless they failed. `--quick` takes some 11 minutes.

hivemind and torchft are not installed with the rest: `--python` names an interpreter that has them beside PyTorch and
this package. Systems that are missing are listed with the reason, PCCL with its authors' claim.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from benchmarks.support.campaign import Campaign, without_curves
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options
from benchmarks.support.paired import CONFIDENCE, interval, ratio
from benchmarks.support.program import run_program
from benchmarks.support.systems.cells import NETWORKS, NOT_MEASURED, SYSTEMS, missing
from benchmarks.support.table import Table, progress, show
from testbed.run.conclusion.summary import wan_bytes
from testbed.run.directory import RUNS
from testbed.telemetry.averages import mean_if_all
from testbed.telemetry.store import read_records

CAMPAIGN = Campaign(RUNS / "benchmark-systems.json")
SEEDS = 3
#: Cross-entropy of a character; it begins at 4.6, and a frequency table of pairs has 2.5.
LOSS = 2.5
#: In 20 s gloo makes no ten steps over quickstart. In a minute each, seven systems take some 11 minutes there.
LIMIT_S, QUICK_LIMIT_S, QUICK_NETWORKS = 180.0, 60.0, ("quickstart",)
#: From the start until the first evaluation: eight interpreters that load PyTorch, and meet over the WAN.
START_S = 120.0
LOOK_S = 0.25

#: More steps than there is time for: cells end at the target.
ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """A network, a system, the seed of the model and of who reads what, and the most seconds that it may take."""

    network: str
    system: str
    seed: int
    limit_s: float

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        return f"{self.network}/{self.system}/{self.seed}/{self.limit_s:g}s"


def measure(cell: Cell, _: ForkServer | None, *, python: str) -> dict[str, Any]:
    """Launch a cell and return its figures, or how it failed."""
    value = NETWORKS[cell.network]()
    with TemporaryDirectory(prefix="systems-") as folder:
        file = Path(folder) / "topology.yaml"
        file.write_text(yaml.safe_dump(value))
        with launched(cell, file, python) as (process, log):
            _wait(process, log, cell.limit_s)
        said = log.read_text()
    if process.returncode not in (0, INTERRUPTED) or not curve_in(said):
        reason = next(iter(re.findall(r"\| (\w*(?:Error|Exception)\b.*)", said)), f"no evaluation in {START_S:g} s")
        progress(f"  failed: {reason}\n{said[-2000:]}")
        return {"failed": reason, "containers": False, "late": 0.0}
    found = figures_of(curve_in(said), Path(re.findall(r"launch in (\S+)", said)[0]), cell.limit_s)
    learned = "not reached" if found["seconds"] is None else f"{found['seconds']:.1f} s"
    progress(f"  {learned}, loss {found['loss']:.3f} after {found['steps']} steps")
    return found


#: `testbed launch`'s exit code.
INTERRUPTED = 130


@contextmanager
def launched(cell: Cell, topology: Path, python: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Launch a cell. Yields the process and the file of its output; the process is ended with the context."""
    system = SYSTEMS[cell.system]
    log = topology.with_name("said")
    script = [python, *system.words, "--steps", str(ENDLESS), "--seed", str(cell.seed)]
    launch = [sys.executable, "-m", "testbed", "launch", "--on-host", *system.options, str(topology), "--", *script]
    with (
        log.open("wb") as output,
        subprocess.Popen(launch, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        try:
            yield process, log
        finally:
            process.send_signal(signal.SIGINT)  # it ends what it has started


def _wait(process: subprocess.Popen[bytes], log: Path, limit_s: float) -> None:
    """Wait until the target is reached, the time is over, or the launch has ended."""
    began_s = time.monotonic()
    while process.poll() is None:
        curve = curve_in(log.read_text(errors="replace"))
        if curve and (curve[-1]["loss"] <= LOSS or time.time() - curve[0]["at"] > limit_s):
            return
        if not curve and time.monotonic() - began_s > START_S:
            return
        time.sleep(LOOK_S)


def curve_in(said: str) -> list[dict[str, float]]:
    """Return the script's evaluations among the lines of a launch."""
    return [json.loads(line) for line in re.findall(r"\| (\{.*\"loss\".*\})\s*$", said, re.MULTILINE)]


def figures_of(curve: Sequence[Mapping[str, float]], directory: Path, limit_s: float) -> dict[str, Any]:
    """Return the outcome of a launch. Seconds and bytes count up to the target, or to the end if it was not reached."""
    began_s = curve[0]["at"]
    reached = next((point for point in curve if point["loss"] <= LOSS), None)
    last = reached or curve[-1]
    ended_s = reached["at"] if reached else began_s + limit_s
    traffic = [record for record in read_records(directory / "traffic.jsonl") if record["at_s"] <= ended_s]
    return {
        "seconds": reached["at"] - began_s if reached else None,
        "loss": last["loss"],
        "steps": last["step"],
        "wan_bytes": wan_bytes(traffic, began_s),
        "curve": [(point["at"] - began_s, point["step"], point["loss"]) for point in curve],
        "containers": False,
        "late": 0.0,
    }


def table(network: str, found: Mapping[Cell, Any], reasons: Mapping[str, str]) -> Table:
    """Return the table of a network's systems, with intervals of time and bytes over the seeds."""
    seconds = {name: _seconds(_cells(found, network, name)) for name in SYSTEMS}
    rows = [[name, "", "", "", "", f"left out: {reason}"] for name, reason in reasons.items()]
    for name, times in seconds.items():
        cells = _cells(found, network, name)
        rows += [[name, "", "", "", "", f"failed: {its['failed']}"] for its in cells.values() if "failed" in its]
        cells = {seed: its for seed, its in cells.items() if "failed" not in its}
        if not cells:
            continue
        against = ratio(times, seconds["gloo"]) if name != "gloo" else None
        loss = mean_if_all(its["loss"] for its in cells.values())
        steps = mean(its["steps"] for its in cells.values())
        rows.append(
            [
                name,
                _said(list(times.values())) if times else f"> {max(cell.limit_s for cell in found):g}",
                str(against or ""),
                _said([its["wan_bytes"] / 1e6 for its in cells.values()]),
                f"{'diverged' if loss is None else f'{loss:.3f}'} after {steps:.0f} steps",
                f"{len(times)} of {len(cells)}",
            ]
        )
    columns = ("", f"s to {LOSS:g}", "× gloo", "MB over the WAN", "loss at the end", "reached it")
    note = f"±: {CONFIDENCE:.0%} over seeds; × gloo is paired by seed, where both reached the loss"
    return Table(network, columns, rows, [note])


def _cells(found: Mapping[Cell, Any], network: str, system: str) -> dict[int, Any]:
    return {cell.seed: its for cell, its in found.items() if (cell.network, cell.system) == (network, system)}


def _seconds(cells: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    return {seed: cell["seconds"] for seed, cell in cells.items() if cell.get("seconds") is not None}


def _said(values: Sequence[float]) -> str:
    middle, half = interval(values)
    return f"{middle:.1f}" + (f" ± {half:.1f}" if len(values) > 1 else "")


def main(words: Sequence[str] | None = None) -> int:
    """Measure the missing cells and print all. Returns the exit code."""
    parser = Options(__doc__)
    parser.add_seeds(SEEDS)
    parser.add_sittings()
    parser.add_argument("--network", action="append", choices=NETWORKS, help="this one only; may be repeated")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="this one only; may be repeated")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that scripts run with")
    args = parser.parse(words)
    networks = args.network or (QUICK_NETWORKS if args.quick else list(NETWORKS))
    names = args.system or list(SYSTEMS)
    reasons = missing(names, args.python)
    if not args.system:
        reasons |= NOT_MEASURED
    for name, reason in reasons.items():
        progress(f"{name} is left out: {reason}")
    cells = [
        Cell(network, name, seed, QUICK_LIMIT_S if args.quick else LIMIT_S)
        for seed in range(1, args.seeds + 1)
        for network in networks
        for name in names
        if name not in reasons
    ]
    CAMPAIGN.measure(cells, partial(measure, python=args.python), forks=False, most=args.cells, seconds=args.seconds)
    known = CAMPAIGN.read()
    found = {cell: known[cell.key] for cell in cells if cell.key in known}
    tables = [table(network, found, reasons) for network in networks]
    shown = without_curves({cell.key: figures for cell, figures in found.items()})
    show(tables, {"repeats": args.seeds, "loss": LOSS, "missing": reasons, "cells": shown}, as_json=args.json)
    return 0


if __name__ == "__main__":
    run_program(main)
