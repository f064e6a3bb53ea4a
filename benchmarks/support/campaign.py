"""Campaigns: cells that are measured once each, by a run of its own, in as many sittings as necessary.

requested cells, without the kept ones  --a run each, in containers or forks-->  figures, kept at once
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml
from rich.console import Console

from benchmarks.support.forkserver import ForkedWorkers, ForkServer
from benchmarks.support.table import progress
from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import Fleet
from testbed.emulation.containers.image import ensure_worker_image
from testbed.run.directory import RunDirectory
from testbed.run.run import Run
from testbed.run.terminal.display import Display, Snapshot, time_left, time_left_text
from testbed.spec.experiment import Experiment
from testbed.spec.sync import SyncSection
from testbed.telemetry.store import write_json


class Cell(Protocol):
    """A measurement that one run makes."""

    @property
    def key(self) -> str:
        """The cell's name in the file."""


AnyCell = TypeVar("AnyCell", bound=Cell)


class Campaign:
    """The figures of cells by their keys, in a file.

    A cell whose run failed has the reason as its `failed`. It is kept, and measured again in the next sitting.
    A cell is not kept if its `late`, the part of its steps that took longer than declared, exceeds `most_late`: its
    compute was not as declared, so seeds do not pair.
    """

    def __init__(self, file: Path, most_late: float = 1.0) -> None:
        self._file = file
        self._most_late = most_late

    def read(self) -> dict[str, Any]:
        """Return all kept figures."""
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def measure(
        self,
        cells: Iterable[AnyCell],
        measure: Callable[[AnyCell, ForkServer | None], Mapping[str, Any]],
        *,
        forks: bool,
        most: int | None = None,
        seconds: float = inf,
    ) -> None:
        """Measure the cells that are not kept, and those that failed.

        Args:
            cells: The requested cells.
            measure: Runs a cell and returns its figures.
            forks: Run workers as forked processes instead of containers.
            most: Measure at most this many cells.
            seconds: Begin no cell later than this many seconds from now.
        """
        known, until_s = self.read(), time.monotonic() + seconds
        requested = list(cells)
        missing = [cell for cell in requested if cell.key not in known]
        # Last, so that short sittings reach all others before a cell that fails again.
        missing += [cell for cell in requested if "failed" in known.get(cell.key, ())]
        if not missing:
            return
        with ForkServer() if forks else nullcontext() as server:
            began_s, asked = time.monotonic(), len(missing[:most])
            for done, cell in enumerate(missing[:most]):
                if time.monotonic() > until_s:
                    return
                left = time_left_text(time_left(time.monotonic() - began_s, done, asked))
                progress(f"{cell.key} ({done + 1} of {len(missing)} that are missing{left and f', {left}'})")
                self.keep(cell.key, {"containers": server is None, **measure(cell, server)})

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        """Keep a cell's figures, unless too many of its steps were late."""
        if found["late"] > self._most_late:
            progress(f"not kept: {found['late']:.0%} of its steps were late, other work held the host up")
            return
        write_json(self._file, {**self.read(), key: found})


def without_curves(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures of cells without their curves, short enough to print."""
    return {key: {name: value for name, value in cell.items() if name != "curve"} for key, cell in found.items()}


def seconds_to(loss: float, run: Mapping[str, Any]) -> float | None:
    """Return when the loss of a cell's curve first reached `loss`; None if it never did.

    The loss of a training that diverged is None.
    """
    return next((float(at_s) for at_s, its, _ in run["curve"] if its is not None and its <= loss), None)


def seeds_in(found: Mapping[str, Any]) -> list[int]:
    """Return the seeds of the kept cells, in order. A seed is the last part of a cell's key."""
    return sorted({int(key.rpartition("/")[2]) for key in found})


def first_step_s(reports: Iterable[Mapping[str, Any]], sync: SyncSection) -> float:
    """Return when the first member began its first step, in Unix seconds.

    A round's report has the steps before it, and with overlap those during it; an iteration contains its steps.
    Times are compared from this moment on: at its first round a protocol with 30 local steps has taken them already.
    """
    if sync.scheme.exchange == "gossip":
        return float(min(report["started_s"] for report in reports))
    at = "finished_s" if sync.own.overlaps else "started_s"
    return float(min(report[at] - report["compute_s"] - report["paced_s"] for report in reports))


class ForkedRun(Run):
    """A run whose workers are forked processes in the network's hosts instead of containers."""

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display, server: ForkServer) -> None:
        super().__init__(experiment, directory, display)
        self._server = server

    def fleet(self, network: str, control: Path) -> Fleet:
        """Return the forked workers."""
        client = engine.connect()
        return ForkedWorkers(client, network, ensure_worker_image(client), control, self._server)


class Enough(Exception):
    """Raised to end a run that has lasted long enough."""


@dataclass(kw_only=True)
class Watch(Display):
    """Shows nothing, and ends the run by Enough once `enough` accepts its directory."""

    console: Console = field(default_factory=lambda: Console(quiet=True))
    directory: Path
    enough: Callable[[Path], bool]

    def show(self, snapshot: Snapshot) -> None:
        """Raise Enough if `enough` accepts the directory, and show nothing."""
        if self.enough(self.directory):
            raise Enough


def load(experiment: Mapping[str, Any], folder: Path) -> Experiment:
    """Write the value of an experiment's file into `folder` and load it."""
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment))
    return Experiment.load(file)


def run_of(
    experiment: Experiment,
    directory: RunDirectory,
    server: ForkServer | None,
    enough: Callable[[Path], bool] = lambda _: False,
) -> Run:
    """Return a run in containers, or in forks if there is a server.

    Executing the run raises Enough once `enough` accepts its directory.
    """
    display = Watch(directory=directory.path, enough=enough)
    return Run(experiment, directory, display) if server is None else ForkedRun(experiment, directory, display, server)
