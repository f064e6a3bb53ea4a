"""Compare simulation with emulation by the mean period of rounds, and measure how large a network can be simulated.

    sudo python -m benchmarks.simulation [--seeds 1,2,3] [--show]

    cell: an experiment, a strategy, a policy, a seed  --testbed run--> period, kept     --testbed simulate--> period

A row is an experiment, strategy and policy. A period lasts from the end of a round to the end of the next. Claimed are
15 %, and the same order of two policies whose emulated intervals over the seeds do not overlap. Emulated cells are kept
in runs/benchmark-simulation.json and not measured again. A seed takes an hour and three quarters.

The large network has sites with four links each and a trace row a second on every link. It is simulated by the fluid
model under policy mst with the first plan held; the fluid model is compared with the chunk simulator at 40 sites.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import networkx as nx
import yaml
from rich.console import Console

from benchmarks.replanning import figures_of
from benchmarks.support.campaign import Campaign, run_of
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.network.routing import Routes
from testbed.planning import make_policy
from testbed.report.record import RunRecord
from testbed.run.directory import RUNS, RunDirectory
from testbed.run.terminal.display import Display
from testbed.run.view import declared_view
from testbed.simulation.fluid_model import FluidModel
from testbed.simulation.network import SimulatedNetwork
from testbed.simulation.round_model import ChunkModel, Payload
from testbed.simulation.simulate import simulate
from testbed.spec.experiment import Experiment

KEPT = RUNS / "benchmark-simulation.json"
EXPERIMENTS = Path(__file__).parents[1] / "experiments"

#: Experiments, and rounds of each: long enough for the events of quickstart, and for a redraw of NetStorm's rates after
#: 180 s. There a star's take five times as long as others.
ROUNDS: Mapping[str, int] = {"quickstart": 150, "netstorm9-dynamic": 120, "netstorm9-rtt": 120}
STAR_ROUNDS = 30
STRATEGIES: Mapping[str, Mapping[str, str]] = {
    "gradients": {"sync.strategy": "gradients"},
    "local_sgd": {"sync.strategy": "local_sgd", "sync.every": "4"},
}
POLICIES = ("packing", "mst", "netstorm", "star")

#: What is claimed.
NEAR = 0.15
SITES, LARGE_ROUNDS, LARGE_S = 1000, 1000, 300.0
#: A network on which both models run.
BOTH, BOTH_ROUNDS = 40, 20


@dataclass(frozen=True, slots=True)
class Twin:
    """A cell that is both emulated and simulated."""

    experiment: str
    strategy: str
    policy: str
    seed: int

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        return f"{self.experiment}/{self.strategy}/{self.policy}/{self.seed}"

    @property
    def file(self) -> Path:
        """The experiment's file."""
        return EXPERIMENTS / f"{self.experiment}.yaml"

    @property
    def rounds(self) -> int:
        """The rounds of a run; a star's are fewer, because they are long."""
        return STAR_ROUNDS if self.policy == "star" and self.experiment != "quickstart" else ROUNDS[self.experiment]

    @property
    def overrides(self) -> dict[str, str]:
        """The fields that differ from the experiment's file, as `--set` takes them."""
        return {
            **STRATEGIES[self.strategy],
            "sync.policy": self.policy,
            "seed": str(self.seed),
            "train.rounds": str(self.rounds),
            "train.evaluate_every": str(self.rounds),
        }


def period_s(record: RunRecord) -> float:
    """Return the mean period, from the end of the first round to that of the last."""
    first, last = record.rounds[0], record.rounds[-1]
    return (last.finished_s - first.finished_s) / (last.number - first.number)


def emulated(cell: Twin, server: ForkServer | None) -> dict[str, Any]:
    """Run a cell and return its figures."""
    experiment = Experiment.load(cell.file, cell.overrides)
    with closing(RunDirectory(experiment.name)) as directory:
        run_of(experiment, directory, server).execute()
    record = RunRecord.read(directory.path)
    return {"period_s": period_s(record), **figures_of(record, experiment)}


def simulated(file: Path, overrides: Mapping[str, str]) -> RunRecord:
    """Simulate an experiment and return its record."""
    done = simulate(file, overrides, False, lambda run: run, Display(Console(file=io.StringIO())))
    return RunRecord.read(done.directory)


@dataclass(frozen=True, slots=True)
class Both:
    """Periods by seed, of an experiment under a strategy and a policy."""

    name: str
    policy: str
    emulated_s: Sequence[float]
    simulated_s: Sequence[float]

    @property
    def off(self) -> float:
        """The simulated mean over the emulated one, less one."""
        return mean(self.simulated_s) / mean(self.emulated_s) - 1

    def apart(self, other: Both) -> bool:
        """Return whether the emulated intervals do not overlap."""
        return max(self.emulated_s) < min(other.emulated_s) or max(other.emulated_s) < min(self.emulated_s)

    def in_order(self, other: Both) -> bool:
        """Return whether the simulation puts the two in the emulation's order."""
        faster = mean(self.emulated_s) < mean(other.emulated_s)
        return faster == (mean(self.simulated_s) < mean(other.simulated_s))


def paired(cells: Sequence[Twin], kept: Mapping[str, Mapping[str, Any]]) -> list[Both]:
    """Simulate the cells that were emulated, and pair the periods."""
    found: dict[tuple[str, str], list[Twin]] = {}
    for cell in cells:
        if cell.key in kept:
            found.setdefault((f"{cell.experiment}, {cell.strategy}", cell.policy), []).append(cell)
    ones = []
    for (name, policy), its in found.items():
        progress(f"{name}, {policy}, simulated")
        periods = [period_s(simulated(cell.file, cell.overrides)) for cell in its]
        ones.append(Both(name, policy, [kept[cell.key]["period_s"] for cell in its], periods))
    return ones


def write_network(folder: Path, sites: int, rounds: int) -> Path:
    """Write an experiment on a seeded network, and return its file.

    Each of the N sites has four links, and each link a trace with a row per second.
    """
    draw = Random(1)
    graph = nx.random_regular_graph(4, sites, seed=1)
    for number in range(20):
        rows = "".join(f"{second},{draw.uniform(20, 60):.3f}\n" for second in range(60))
        (folder / f"{number}.csv").write_text(f"time_s,rate_mbps\n{rows}")

    def way() -> dict[str, Any]:
        return {"trace": {"file": f"{draw.randrange(20)}.csv", "offset": f"{draw.randrange(60)}s"}}

    links = [
        {"between": [f"s{a}", f"s{b}"], "rtt": f"{draw.uniform(5, 60):.1f}ms", "forward": way(), "backward": way()}
        for a, b in sorted(map(sorted, graph.edges))
    ]
    network = {"name": "large", "sites": {f"s{site}": {"workers": 1} for site in range(sites)}, "links": links}
    (folder / "network.yaml").write_text(yaml.safe_dump(network))
    experiment = {
        "name": f"large-{sites}",
        "topology": "network.yaml",
        "train": {"model": "cnn", "rounds": rounds},
        "compute": {"step_time": "100ms"},
        "sync": {"policy": "mst"},
        "controller": {"hold": True},
    }
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    return folder / "experiment.yaml"


def fluid_off(sites: int, rounds: int) -> float:
    """Return the relative difference of the fluid model's mean period from the chunk simulator's, under one plan."""
    with TemporaryDirectory() as folder:
        experiment = Experiment.load(write_network(Path(folder), sites, rounds))
    view = declared_view(experiment.topology, experiment.spec.round_bytes)
    plan = make_policy("mst").plan(view)
    ends = {}
    for kind in (ChunkModel, FluidModel):
        model = kind(SimulatedNetwork(experiment, Routes.over(experiment.topology)), 120.0)
        over_s = dict.fromkeys(view.names, 0.0)
        for number in range(1, rounds + 1):
            began_s = {name: at_s + 0.1 for name, at_s in over_s.items()}
            over_s = dict(model.simulate(plan, number, began_s, Payload(view.model_bytes)).finished_s)
        ends[kind] = max(over_s.values())
    return ends[FluidModel] / ends[ChunkModel] - 1


def large(sites: int, rounds: int) -> dict[str, Any]:
    """Simulate the large network: seconds that it took, and that were simulated."""
    with TemporaryDirectory() as folder:
        file = write_network(Path(folder), sites, rounds)
        began = time.monotonic()
        done = simulate(file, {}, False, lambda run: run, Display(Console(file=io.StringIO())))
        took_s = time.monotonic() - began
    return {"sites": sites, "rounds": rounds, "seconds": took_s, "run": str(done.directory)}


def tables(ones: Sequence[Both], big: Mapping[str, Any], off: float) -> list[Table]:
    """Periods by cell, order of policies, and the large network."""
    rows = [
        (
            f"{one.name}, {one.policy}",
            str(len(one.emulated_s)),
            f"{mean(one.emulated_s):.3f} [{min(one.emulated_s):.3f}, {max(one.emulated_s):.3f}]",
            f"{mean(one.simulated_s):.3f}",
            f"{one.off:+.1%}",
            "yes" if abs(one.off) <= NEAR else "NO",
        )
        for one in ones
    ]
    columns = ("", "seeds", "emulated s", "simulated s", "off", f"within {NEAR:.0%}")
    orders = [pair for pair in combinations(ones, 2) if pair[0].name == pair[1].name and pair[0].apart(pair[1])]
    kept = sum(one.in_order(other) for one, other in orders)
    notes = (f"Of {len(orders)} pairs of policies whose emulated intervals do not overlap {kept} are in order.",)
    row = (f"{big['sites']}", f"{big['rounds']}", f"{big['seconds']:.0f}", f"{off:+.1%}")
    large_columns = ("sites", "rounds", "seconds that it took", f"fluid off chunks at {BOTH} sites")
    return [Table("Mean period of rounds", columns, rows, notes), Table("A large network", large_columns, [row])]


def main() -> int:
    """Measure the missing cells and print all. Returns the exit code."""
    parser = Options(__doc__)
    parser.add_draws((1, 2, 3), quick=1)
    parser.add_sittings()
    parser.add_argument("--kept", type=Path, default=KEPT, help="where figures of emulation are kept")
    parser.add_argument("--show", action="store_true", help="emulate nothing")
    args = parser.parse()
    few = 1 if args.quick else None
    asked = product(args.seeds, list(ROUNDS)[:few], list(STRATEGIES)[:few], POLICIES[:few])
    cells = [Twin(name, strategy, policy, seed) for seed, name, strategy, policy in asked]
    campaign = Campaign(args.kept)
    if not args.show:
        campaign.measure(cells, emulated, forks=False, most=args.cells, seconds=args.seconds)
    ones = paired(cells, campaign.read())
    progress("the large network")
    big = large(*((100, 50) if args.quick else (SITES, LARGE_ROUNDS)))
    off = fluid_off(BOTH, BOTH_ROUNDS)
    held = all(abs(one.off) <= NEAR for one in ones) and big["seconds"] <= LARGE_S
    figures = {
        "repeats": len(args.seeds),
        "cells": {f"{one.name}, {one.policy}": {"off": one.off} for one in ones},
        "large": big,
        "fluid_off": off,
    }
    show(tables(ones, big, off), figures, as_json=args.json)
    return 0 if held else 1


if __name__ == "__main__":
    run_program(main)
