"""Runs that last for a window of time on a network of `benchmarks.support.wans`, emulated or simulated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from rich.console import Console

from benchmarks.support.campaign import Enough, load, run_of
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.wans import Wan
from testbed.report.record import RunRecord
from testbed.run.directory import RunDirectory
from testbed.run.terminal.display import Display
from testbed.simulation.simulate import train
from testbed.spec.experiment import Experiment

Mode = Literal["hold", "follow", "oracle"]
MODES: Mapping[Mode, Mapping[str, Any]] = {
    "hold": {"hold": True},
    "follow": {},
    "oracle": {"knowledge": "oracle"},
}

ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a network, a mode and a policy."""

    wan: Wan
    mode: Mode
    policy: str

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        return f"{self.policy}/{self.wan.name}/{self.wan.seed}/{self.mode}"

    def experiment(self, folder: Path) -> dict[str, Any]:
        """Write the network's files into `folder`. Returns the value of the experiment's file."""
        network = self.wan.write(folder)
        return {
            "name": f"replanning-{self.wan.name}-{self.wan.seed}-{self.mode}",
            **network,
            "train": {**network["train"], "rounds": ENDLESS, "evaluate_every": ENDLESS},
            "sync": {"policy": self.policy},
            "controller": {"period": "2s", **MODES[self.mode]},
            "seed": self.wan.seed,
        }


class Window:
    """A span of time that begins when `over` is first called."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends_s: float | None = None

    def over(self, _: Path) -> bool:
        """Return whether the window is over. The signature is that of `enough` in `run_of`."""
        now = time.monotonic()
        if self._ends_s is None:
            self._ends_s = now + self._seconds
        return now > self._ends_s


def measure(cell: Cell, server: ForkServer | None, window_s: float | None = None) -> tuple[RunRecord, Experiment]:
    """Emulate a cell's run for the network's window, or for `window_s` seconds, after the members have joined.

    Returns:
        The run's record and its experiment.
    """
    with TemporaryDirectory() as folder:
        experiment = load(cell.experiment(Path(folder)), Path(folder))
        with closing(RunDirectory(experiment.name)) as directory, suppress(Enough):
            run_of(experiment, directory, server, Window(window_s or cell.wan.window_s).over).execute()
    return RunRecord.read(directory.path), experiment


def simulate(cell: Cell, window_s: float | None = None) -> tuple[RunRecord, Experiment]:
    """Simulate a cell's run: the real controller, members, links and probes on simulated time."""
    with TemporaryDirectory() as folder:
        experiment = load(cell.experiment(Path(folder)), Path(folder))
        until_s = window_s or cell.wan.window_s
        with closing(RunDirectory(f"{experiment.name}-simulated")) as directory:
            train(experiment, directory, Display(Console(quiet=True)), gradients=False, until_s=until_s)
    return RunRecord.read(directory.path), experiment
