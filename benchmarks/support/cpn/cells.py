"""The runs of `benchmarks.cpn`: each a task with a target, a protocol and a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from benchmarks.support.cpn.protocols import CONDUCTED, EVENTS, FLAT, OURS, PROTOCOLS, TOPOLOGY
from testbed.spec.topology import Topology

#: 1 to 25 Mbit/s a link: a flat all-reduce of 0.5 MB then takes some four times as long as the slowest member's step.
SCALE = 0.05

SEEDS = 5

#: Factors on the rates of simulated cells.
SCALES = (0.03, 0.06, 0.08, 0.15, 0.3)
SIMULATED_SEEDS = 3
#: The longest simulated cell, as a multiple of the longest emulated one.
LONGER = 2.0

#: More rounds than there is time for: runs end at the target.
ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class Goal:
    """The mean test loss that counts as learned, and the most seconds that a cell may take."""

    loss: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """A task and its target. Cells with events have a target further away, so that most of a run comes after them.

    A step takes `step_s` at speed 1: the twelve members make 5.6 steps in that time, which must take less than half of
    what a host of two cores can do.
    """

    train: Mapping[str, Any]
    step_s: float
    goal: Goal
    beyond: Goal

    @property
    def slowest_step_s(self) -> float:
        """The time of a step of the slowest member, in seconds."""
        return self.step_s / min(site.speed for site in Topology.load(TOPOLOGY).sites.values())


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
        goal=Goal(0.7, 45.0),
        beyond=Goal(0.5, 45.0),
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    task: str
    protocol: str
    seed: int
    #: The factor on the rates of links.
    scale: float = SCALE
    simulated: bool = False

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        name = f"{self.task}/{self.protocol}/{self.seed}"
        return f"simulated/{self.scale:g}/{name}" if self.simulated else name

    @property
    def goal(self) -> Goal:
        """The target: the task's `beyond` for protocols with events."""
        task = TASKS[self.task]
        goal = task.beyond if self.protocol in EVENTS else task.goal
        return replace(goal, limit_s=LONGER * goal.limit_s) if self.simulated else goal

    def experiment(self) -> dict[str, Any]:
        """Return the value of the experiment's file."""
        task, protocol = TASKS[self.task], PROTOCOLS[self.protocol]
        return {
            "name": "benchmark-cpn",
            "topology": str(TOPOLOGY),
            "scale": self.scale,
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


def cells(tasks: Sequence[str], seeds: int) -> Iterator[Cell]:
    """Yield all cells, seed by seed."""
    for seed in range(1, seeds + 1):
        for task in tasks:
            yield from (Cell(task, protocol, seed) for protocol in PROTOCOLS)


def simulated_cells(tasks: Sequence[str], scales: Sequence[float], seeds: int) -> Iterator[Cell]:
    """Yield the cells of the hybrid, of a flat all-reduce and of `auto`, seed by seed."""
    for seed in range(1, seeds + 1):
        for task, scale in product(tasks, scales):
            yield from (Cell(task, protocol, seed, scale, simulated=True) for protocol in (OURS, FLAT, CONDUCTED))
