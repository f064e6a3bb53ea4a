"""The cells and schemes of `benchmarks.frontier`; the schemes were all named before the first measurement.

A cell is a network, a model and its data, how workers share the data, a scheme and a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

TOPOLOGIES = Path(__file__).parents[3] / "topologies"

#: Steps of the fastest member: a multiple of all schemes' periods (8, 15, 16, 24, 30).
STEPS, QUICK_STEPS = 480, 240
#: Rounds in which an all-reduce is timed. A round's time depends on the network and not on the model's values, so that
#: the time of all its steps follows.
TIMED_ROUNDS = 6
#: Evaluations in a run, at least.
EVALUATIONS = 12


@dataclass(frozen=True, slots=True)
class Network:
    """A topology at a scale, with what all schemes have in common on it."""

    topology: str
    scale: float
    #: The model of the text task.
    text: str
    #: The declared seconds of a step, by the kind of task. A fifth to a half of two cores is busy with the steps.
    step_s: Mapping[str, float]
    #: The fields of `sync` that all schemes have.
    sync: Mapping[str, Any] = field(default_factory=dict)

    def train(self, task: str) -> dict[str, Any]:
        """Return the experiment's model, data and optimizer."""
        if task == "digits":
            return {"model": "cnn", "batch": 16, "optimizer": {"name": "adam", "learning_rate": 0.002}}
        optimizer = {"name": "adamw", "learning_rate": 0.001}
        return {"model": self.text, "dataset": "documentation", "batch": 4, "optimizer": optimizer}


NETWORKS: Mapping[str, Network] = {
    "netstorm9": Network("netstorm9", 0.1, "gpt", {"text": 1.0, "digits": 0.1}, {"congestion": "reno"}),
    "cpn-12": Network("cpn-12", 0.05, "gpt-small", {"text": 0.06, "digits": 0.05}),
    "quickstart": Network("quickstart", 1.0, "gpt-small", {"text": 0.06, "digits": 0.06}),
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """An experiment's `sync`, with what else depends on it."""

    sync: Mapping[str, Any]
    #: Local steps of the fastest member before members exchange.
    steps: int = 1
    #: The rounds of one exchange.
    rounds: int = 1
    #: The inner optimizer, if the scheme has its own.
    inner: str | None = None


#: The references: every gradient in fp32, over packing's trees, and to one server as in MXNet.
ALL_REDUCE = Scheme({"strategy": "gradients", "policy": "packing"})
STAR = Scheme({"strategy": "gradients", "policy": "star"})
REFERENCES: Mapping[str, Scheme] = {"packing": ALL_REDUCE, "star": STAR}

_AVERAGE = {"learning_rate": 1.0, "momentum": 0.0}
#: The six schemes that are emulated.
EMULATED: Mapping[str, Scheme] = {
    "diloco": Scheme({"strategy": "diloco", "every": 30, "policy": "packing"}, 30),
    "sparseloco": Scheme({"strategy": "sparseloco", "policy": "packing"}, 30, rounds=2),  # the norms, then the changes
    "muloco": Scheme({"strategy": "muloco", "policy": "packing"}, 30, inner="muon"),
    "hybrid": Scheme(
        {
            "strategy": "hybrid",
            "every": 16,
            "policy": "cpn",
            "options": {"codecs": True, "spatial": "spread"},
            "outer": _AVERAGE,
        },
        16,
    ),
    "decoupled diloco, 4 bits": Scheme({"strategy": "decoupled_diloco", "codec": "bins4"}, 24),
    "auto": Scheme({"strategy": "auto", "policy": "auto"}),
}
#: All schemes, for simulations.
SCHEMES: Mapping[str, Scheme] = {
    "all-reduce": ALL_REDUCE,
    **EMULATED,
    "local sgd": Scheme({"strategy": "local_sgd", "every": 8, "policy": "packing"}, 8),
    "hierarchical": Scheme({"strategy": "hierarchical", "every": 8, "policy": "hips", "options": {"period": 4}}, 8),
    "sparta": Scheme({"strategy": "sparta", "policy": "packing"}),
    "loscar": Scheme({"strategy": "loscar", "policy": "packing"}),
    "noloco": Scheme({"strategy": "noloco", "every": 30}, 30),
    "halos": Scheme({"strategy": "halos"}, 8),
    "decoupled diloco": Scheme({"strategy": "decoupled_diloco"}, 24),
}


@dataclass(frozen=True, slots=True)
class Task:
    """A model and its data on a network."""

    network: str
    kind: str
    #: The concentration of the Dirichlet draws by which workers share the data; infinity shares evenly.
    alpha: float

    @property
    def name(self) -> str:
        """The task's name in keys and tables."""
        return f"{self.network}/{self.kind}/{self.alpha:g}"


ALPHAS = (0.1, 0.5, inf)
TASKS: Sequence[Task] = [
    Task(network, kind, alpha) for network, kind, alpha in product(NETWORKS, ("text", "digits"), ALPHAS)
]
EMULATED_TASKS: Sequence[Task] = [
    Task("netstorm9", "text", inf),
    Task("netstorm9", "digits", 0.5),
    Task("cpn-12", "text", 0.1),
    Task("cpn-12", "digits", 0.1),
    Task("quickstart", "text", 0.5),
    Task("quickstart", "digits", inf),
]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: all `steps` of a scheme or, if it is `timed`, TIMED_ROUNDS rounds of a reference."""

    task: Task
    scheme: str
    seed: int
    simulated: bool
    steps: int
    timed: bool = field(default=False)

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        how = "simulated" if self.simulated else "emulated"
        return f"{how}/{self.task.name}/{self.scheme}/{self.seed}/{'timed' if self.timed else self.steps}"

    @property
    def its(self) -> Scheme:
        """The scheme."""
        return REFERENCES[self.scheme] if self.timed else SCHEMES[self.scheme]

    def experiment(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the value of the experiment's file; `more` is merged into its `sync`."""
        network, scheme = NETWORKS[self.task.network], self.its
        train = network.train(self.task.kind)
        if scheme.inner:
            train["optimizer"] = {**train["optimizer"], "name": scheme.inner}
        rounds = TIMED_ROUNDS if self.timed else self.steps // scheme.steps * scheme.rounds
        shared = {"kind": "iid"} if self.task.alpha == inf else {"kind": "dirichlet", "alpha": self.task.alpha}
        return {
            "name": "benchmark-frontier",
            "topology": str(TOPOLOGIES / f"{network.topology}.yaml"),
            "scale": network.scale,
            "train": {
                **train,
                "rounds": rounds,
                "partition": shared,
                "evaluate_every": rounds if self.timed else max(1, rounds // EVALUATIONS),
            },
            "compute": {"step_time": f"{network.step_s[self.task.kind] * 1e3:g}ms"},
            "sync": {**network.sync, **scheme.sync, **(more or {})},
            "controller": {"period": "2s", "margin": 0.1, "dwell": 3},
            "seed": self.seed,
        }


def emulated(tasks: Sequence[Task], schemes: Sequence[str], seeds: int, steps: int) -> list[Cell]:
    """Return the cells of the emulated tables, a seed and task at a time: references, schemes and all-reduce's curve.

    All-reduce's curve is simulated: its loss does not depend on the network, and on a slow network it takes hours.
    """
    return [
        cell
        for seed in range(1, seeds + 1)
        for task in tasks
        for cell in (
            Cell(task, "all-reduce", seed, True, steps),
            *(Cell(task, name, seed, False, steps, timed=True) for name in REFERENCES),
            *(Cell(task, name, seed, False, steps) for name in schemes),
        )
    ]


def simulated(tasks: Sequence[Task], schemes: Sequence[str], seeds: int, steps: int) -> list[Cell]:
    """Return the cells of the simulated tables, a seed and task at a time."""
    return [
        cell
        for seed in range(1, seeds + 1)
        for task in tasks
        for cell in (
            *(Cell(task, name, seed, True, steps, timed=True) for name in REFERENCES),
            *(Cell(task, name, seed, True, steps) for name in dict.fromkeys(("all-reduce", *schemes))),
        )
    ]
