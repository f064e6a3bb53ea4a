"""Writes small experiments, and simulates them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from testbed.report.record import RunRecord
from testbed.run.terminal.display import Display
from testbed.simulation.simulate import simulate
from testbed.spec.experiment import Experiment

#: Three sites in a triangle, 12 Mbit/s and 20 ms there and back.
LINKS = [{"between": pair, "rate": "12mbit", "rtt": "20ms"} for pair in (["a", "b"], ["b", "c"], ["c", "a"])]


def write(folder: Path, links: Sequence[Mapping[str, Any]] = LINKS, lan_rate: str = "1gbit", **values: Any) -> Path:
    """Write an experiment and its network, sites a, b and c with a worker each. Returns the experiment's file."""
    sites = {site: {"workers": 1} for site in "abc"}
    network = {"name": "net", "sites": sites, "links": list(links), "lan": {"rate": lan_rate, "delay": "0ms"}}
    (folder / "net.yaml").write_text(yaml.safe_dump(network))
    experiment = {
        "name": "simulated",
        "topology": "net.yaml",
        "train": {"model": "synthetic", "parameters": 150_000, "rounds": 8},
        "compute": {"step_time": "100ms"},
        "sync": {"policy": "ring"},
        "controller": {"period": "1s", "hold": True},
        **values,
    }
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    return folder / "experiment.yaml"


def load(folder: Path, links: Sequence[Mapping[str, Any]] = LINKS, **values: Any) -> Experiment:
    """Write an experiment as `write` does, and load it."""
    return Experiment.load(write(folder, links, **values))


def simulated(file: Path, gradients: bool = False, **overrides: str) -> RunRecord:
    """Simulate an experiment. Returns its records; no page is written."""
    done = simulate(file, overrides, gradients, lambda run: run, Display(Console(file=io.StringIO())))
    return RunRecord.read(done.directory)
