"""Compare simulation with emulation by the mean period of rounds, and measure how large a network can be simulated.

    sudo python -m benchmarks.simulation [--seeds 1,2,3] [--show]

    cell: a network, a seed, a mode  --emulated-->  rounds in the window, kept     --simulated-->  rounds in the window

Cells are those of `benchmarks.replanning` on NETWORKS, in the modes `hold` and `follow`; cells that it emulated are not
measured again, and cells that are emulated here are kept for it. A period is the window divided by the rounds that were
over in it. Claims: the simulated mean over the seeds of a network and mode is within 15 % (NEAR), and the two modes are
in the emulated order where the emulated modes are further apart than NEAR_MODES. A seed takes 22 minutes.

The large network has sites with four links each and a trace row a second on every link. It is simulated by the fluid
model under policy mst with the first plan held; the fluid model is compared with the chunk simulator at 40 sites.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import networkx as nx
import yaml
from rich.console import Console

from benchmarks.replanning import KEPT, measured, recorded, simulated
from benchmarks.support.campaign import Campaign
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from benchmarks.support.wans import Kind, Wan
from benchmarks.support.window import Cell, Mode
from testbed.emulation.network.routing import Routes
from testbed.planning import make_policy
from testbed.run.terminal.display import Display
from testbed.run.view import declared_view
from testbed.simulation.fluid_model import FluidModel
from testbed.simulation.network import SimulatedNetwork
from testbed.simulation.round_model import ChunkModel, Payload
from testbed.simulation.simulate import simulate
from testbed.spec.experiment import Experiment

#: Rates that stay, fall, are drawn again, and those of regions and clouds.
NETWORKS: Sequence[tuple[Kind, int]] = (("constant", 6), ("drop", 5), ("redraw", 6), ("regions", 6), ("cloud", 6))
MODES: Sequence[Mode] = ("hold", "follow")

#: The claimed error; and modes whose emulated periods are nearer to each other than this may be in either order.
NEAR, NEAR_MODES = 0.15, 0.05
SITES, LARGE_ROUNDS, LARGE_S = 1000, 1000, 300.0
#: A network on which both models run.
BOTH, BOTH_ROUNDS = 40, 20


@dataclass(frozen=True, slots=True)
class Both:
    """Mean periods by seed, in seconds, on a network in a mode."""

    network: str
    mode: str
    emulated_s: Sequence[float]
    simulated_s: Sequence[float]

    @property
    def off(self) -> float:
        """The simulated mean over the emulated one, less one."""
        return mean(self.simulated_s) / mean(self.emulated_s) - 1


def paired(cells: Sequence[Cell], kept: Mapping[str, Mapping[str, Any]]) -> list[Both]:
    """Simulate the cells that were emulated, and pair the periods."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.key in kept:
            found.setdefault((cell.wan.name, cell.mode), []).append(cell)
    ones = []
    for (network, mode), its in found.items():
        progress(f"{network}, {mode}, simulated")
        emulated_s = [cell.wan.window_s / kept[cell.key]["rounds"] for cell in its]
        simulated_s = [cell.wan.window_s / simulated(cell, None)["rounds"] for cell in its]
        ones.append(Both(network, mode, emulated_s, simulated_s))
    return ones


def orders(ones: Sequence[Both]) -> list[bool]:
    """Return, for each network, whether the simulation has its two modes in the emulation's order.

    Networks on which the emulated modes are within NEAR_MODES of each other are left out.
    """
    by_network: dict[str, dict[str, Both]] = {}
    for one in ones:
        by_network.setdefault(one.network, {})[one.mode] = one
    found = []
    for its in by_network.values():
        if its.keys() >= set(MODES):
            emulated, made = (
                mean(getattr(its["hold"], name)) / mean(getattr(its["follow"], name))
                for name in ("emulated_s", "simulated_s")
            )
            if abs(emulated - 1) > NEAR_MODES:
                found.append((emulated > 1) == (made > 1))
    return found


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
    """Return the table of periods by cell, with the order of modes, and that of the large network."""
    rows = [
        (
            f"{one.network}, {one.mode}",
            str(len(one.emulated_s)),
            f"{mean(one.emulated_s):.3f} [{min(one.emulated_s):.3f}, {max(one.emulated_s):.3f}]",
            f"{mean(one.simulated_s):.3f}",
            f"{one.off:+.1%}",
            "yes" if abs(one.off) <= NEAR else "NO",
        )
        for one in ones
    ]
    columns = ("", "seeds", "emulated s", "simulated s", "off", f"within {NEAR:.0%}")
    kept = orders(ones)
    notes = (
        f"Where the emulated modes are more than {NEAR_MODES:.0%} apart, {sum(kept)} of {len(kept)} are in order.",
    )
    row = (f"{big['sites']}", f"{big['rounds']}", f"{big['seconds']:.0f}", f"{off:+.1%}")
    large_columns = ("sites", "rounds", "seconds that it took", f"fluid off chunks at {BOTH} sites")
    return [Table("Mean period of rounds", columns, rows, notes), Table("A large network", large_columns, [row])]


def main(words: Sequence[str] | None = None) -> int:
    """Measure the missing cells and print all. Returns the exit code."""
    parser = Options(__doc__)
    parser.add_draws((1, 2, 3), quick=1)
    parser.add_sittings()
    parser.add_argument("--kept", type=Path, default=KEPT, help="where figures of emulation are kept")
    parser.add_argument("--show", action="store_true", help="emulate nothing")
    args = parser.parse(words)
    networks = NETWORKS[:1] if args.quick else NETWORKS
    cells = [
        Cell(Wan(kind, sites, seed, recorded()), mode, "auto")
        for seed, (kind, sites), mode in product(args.seeds, networks, MODES)
    ]
    campaign = Campaign(args.kept)
    kept = campaign.read()
    if any(kept[cell.key].get("simulated", False) for cell in cells if cell.key in kept):
        parser.error(f"--kept: the cells in {args.kept} were simulated; name a file of emulated ones")
    if not args.show:
        campaign.measure(cells, measured, forks=True, most=args.cells, seconds=args.seconds)
    ones = paired(cells, campaign.read())
    if not ones:
        progress(f"no cell is compared, since {args.kept} has none of these emulated: leave --show out to emulate them")
    progress("the large network")
    big = large(*((100, 50) if args.quick else (SITES, LARGE_ROUNDS)))
    off = fluid_off(BOTH, BOTH_ROUNDS)
    held = all(abs(one.off) <= NEAR for one in ones) and all(orders(ones)) and big["seconds"] <= LARGE_S
    figures = {
        "repeats": len(args.seeds),
        "cells": {f"{one.network}, {one.mode}": {"off": one.off} for one in ones},
        "large": big,
        "fluid_off": off,
    }
    show(tables(ones, big, off), figures, as_json=args.json)
    return 0 if held else 1


if __name__ == "__main__":
    run_program(main)
