"""A case: an experiment and the faults injected into it, all drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.schemes import SCHEMES
from tests.chaos import faults
from tests.chaos.faults import Fault, Moment
from tests.run.running import TRAINS

#: One in this many cases has its members in containers.
CONTAINERS_ONE_OF = 5
#: Rounds of a case: few, but enough for a fault of 3 s and the recovery from it.
ROUNDS = 30
STEP_S = 0.12
#: The rounds in which faults are injected: later rounds would show nothing new.
MOMENTS = range(2, 12)

#: The files of a case beside experiment.yaml, which names the topology.
TOPOLOGY = "topology.yaml"
FAULTS = "faults.yaml"
#: What some links replay.
TRACE = "trace.csv"
REPLAYED = "time_s,rate_mbps\n" + "".join(f"{tick / 10},{5 + tick % 20}\n" for tick in range(100))

#: Schemes with their options and their weights in the draw: schemes that reduce show most about a fault.
SYNC: tuple[tuple[int, dict[str, Any]], ...] = (
    (8, {"strategy": "gradients"}),
    (2, {"strategy": "local_sgd", "every": 2}),
    (1, {"strategy": "post_local_sgd", "every": 2, "start": 4}),
    (2, {"strategy": "diloco", "every": 2}),
    (1, {"strategy": "hierarchical", "every": 2, "period": 2}),
    (1, {"strategy": "hybrid", "every": 2, "period": 2}),
    (1, {"strategy": "sparta", "share": 0.1}),
    (1, {"strategy": "loscar", "share": 0.1}),
    (2, {"strategy": "sparseloco", "every": 2, "clip": False}),
    (2, {"strategy": "hop"}),
    (1, {"strategy": "dpsgd"}),
    (1, {"strategy": "prague"}),
    (1, {"strategy": "netmax"}),
    (1, {"strategy": "sgp"}),
    (1, {"strategy": "fedasync", "every": 2}),
    (1, {"strategy": "noloco", "every": 2}),
    (1, {"strategy": "halos", "every": 2, "accumulate": 2}),
    (1, {"strategy": "decoupled_diloco", "every": 2, "fragments": 2}),
)
POLICIES = ("mst", "netstorm", "packing", "ring", "star", "mlnet", "auto")
POLICIES_OF_GROUPS = ("mst", "auto")

#: Parts of the lines that a run prints after a step, as moments before and after training.
LINES = ("shaping backend", "directed links", "links measured", "workers in", "workers loaded", TRAINS, "summary")


@dataclass(frozen=True)
class Case:
    """The `number`-th case of a seed. `topology` and `experiment` are the values of the files."""

    seed: int
    number: int
    containers: bool
    topology: Mapping[str, Any]
    experiment: Mapping[str, Any]
    faults: tuple[Fault, ...]

    @classmethod
    def drawn(cls, seed: int, number: int) -> Case:
        """Draw a case, always the same for the same seed and number."""
        draw = random.Random(f"{seed} {number}")
        containers = number % CONTAINERS_ONE_OF == CONTAINERS_ONE_OF - 1
        topology = _topology(draw)
        experiment = _experiment(draw)
        members = _members(topology)
        restarts = experiment.get("elastic", {}).get("lost") == "restart"
        drawn = (_fault(draw, members, containers, restarts) for _ in range(draw.choice((1, 1, 1, 2))))
        return cls(seed, number, containers, topology, experiment, tuple(drawn))

    @classmethod
    def plain(cls, seed: int, containers: bool = False, dies_in: int | None = None) -> Case:
        """Return a case of gradients on a tree, without faults unless member c-w0 is to die in round `dies_in`."""
        draw = random.Random(f"{seed} plain")
        experiment = {**_experiment(draw), "sync": {"policy": "mst"}}
        experiment.pop("elastic", None)
        done = () if dies_in is None else (faults.Kill(Moment(round=dies_in), "c-w0"),)
        return cls(seed, 0, containers, _topology(draw), experiment, done)

    @classmethod
    def read(cls, folder: Path) -> Case:
        """Read a case from the files that `write` wrote."""
        topology, experiment, rest = (
            yaml.safe_load((folder / name).read_text()) for name in (TOPOLOGY, "experiment.yaml", FAULTS)
        )
        injected = (
            getattr(faults, each.pop("kind"))(**{**each, "at": Moment(**each["at"])}) for each in rest.pop("faults")
        )
        return cls(**rest, topology=topology, experiment=experiment, faults=tuple(injected))

    @property
    def members(self) -> tuple[str, ...]:
        """The members' names."""
        return _members(self.topology)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return int(self.experiment["train"]["rounds"])

    @property
    def reduces(self) -> bool:
        """True if the members reduce in rounds, False if they gossip."""
        return SCHEMES[self.experiment["sync"].get("strategy", "gradients")].exchange == "all-reduce"

    @property
    def elastic(self) -> bool:
        """True if the run goes on without a lost member."""
        return "elastic" in self.experiment

    def has(self, kind: type[Fault]) -> bool:
        """Return whether the case has a fault of this kind."""
        return any(isinstance(fault, kind) for fault in self.faults)

    def write(self, folder: Path) -> Path:
        """Write the case's files into a folder, and return the experiment's."""
        (folder / TRACE).write_text(REPLAYED)
        (folder / TOPOLOGY).write_text(yaml.safe_dump(dict(self.topology)))
        injected = [{"kind": type(fault).__name__, **asdict(fault)} for fault in self.faults]
        rest = {"seed": self.seed, "number": self.number, "containers": self.containers, "faults": injected}
        (folder / FAULTS).write_text(yaml.safe_dump(rest))
        file = folder / "experiment.yaml"
        file.write_text(yaml.safe_dump(dict(self.experiment)))
        return file

    def __str__(self) -> str:
        sync = self.experiment["sync"]
        what = [sync.get("strategy", "gradients"), sync.get("policy", ""), "elastic" if self.elastic else ""]
        where = "containers" if self.containers else "processes"
        done = "; ".join(map(str, self.faults)) or "nothing"
        return f"{' '.join(filter(None, what))}, {len(self.members)} in {where}: {done}"


def _topology(draw: random.Random) -> dict[str, Any]:
    def link(a: str, b: str) -> dict[str, Any]:
        return {"between": [a, b], "rate": f"{draw.randint(4, 30)}mbit", "rtt": f"{draw.randint(2, 20)}ms"}

    sites = {name: {"workers": 1} for name in "abc"}
    sites["a"]["workers"] = draw.choice((1, 2))
    replayed = {**link("a", "c"), "trace": {"file": TRACE}}
    links = [link("a", "b"), link("b", "c"), draw.choice((link("a", "c"), replayed))]
    return {"name": "chaos", "sites": sites, "links": links}


def _members(topology: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{site}-w{i}" for site, its in topology["sites"].items() for i in range(its["workers"]))


def _experiment(draw: random.Random) -> dict[str, Any]:
    sync = dict(draw.choices([its for _, its in SYNC], [often for often, _ in SYNC])[0])
    scheme = SCHEMES[sync["strategy"]]
    if scheme.exchange == "all-reduce":
        grouped = sync["strategy"] in ("hierarchical", "hybrid")
        sync["policy"] = draw.choice(POLICIES_OF_GROUPS if grouped else POLICIES)
    experiment: dict[str, Any] = {
        "name": "chaos",
        "topology": "topology.yaml",
        "train": {
            "model": "synthetic",
            "parameters": 600,
            "batch": 16,
            "rounds": ROUNDS,
            "optimizer": {"name": "sgd", "learning_rate": 1},
        },
        "compute": {"step_time": f"{STEP_S}s"},
        "sync": {**sync, "round_timeout": "5s"},
        "controller": {"period": "0.5s", "dwell": 2},
        "events": _events(draw),
    }
    if scheme.elastic and draw.random() < 0.6:
        lease = {"lease": "1s"} if scheme.exchange == "all-reduce" else {}
        experiment["elastic"] = {"quorum": 2, "lost": draw.choice(("restart", "leave")), **lease}
    return experiment


def _events(draw: random.Random) -> list[dict[str, Any]]:
    """Return the experiment's events: changes of the network during the run."""
    number = draw.choice(MOMENTS)
    return draw.choice(
        (
            [],
            [{"round": number, "change": {"link": "a->b", "rate": f"{draw.randint(1, 30)}mbit"}}],
            [{"round": number, "down": ["a", "c"]}, {"round": number + 4, "up": ["a", "c"]}],
        )
    )


def _fault(draw: random.Random, members: tuple[str, ...], containers: bool, restarts: bool) -> Fault:
    member, at = draw.choice(members), Moment(round=draw.choice(MOMENTS))
    process = draw.choice((member, member, "controller", "core", "replay", "owner"))
    phase = Moment(line=draw.choice(LINES))
    connection = draw.choice(("peer", "control"))
    choices: list[Fault] = [
        faults.Kill(at, process),
        faults.Kill(phase, "owner"),
        faults.Pause(at, process, draw.choice((0.5, 2.0, 3.0))),
        faults.Partition(at, member, draw.choice((0.5, 3.0, 8.0))),
        faults.Truncate(at, member, connection),
        faults.Corrupt(at, member, connection, draw.randrange(2**32)),
        faults.Delay(at, member, draw.choice((0.5, 3.0)), draw.randrange(2**32)),
        faults.FillDisk(draw.choice((at, phase))),
        faults.RunBeside(draw.choice((at, phase))),
        faults.Interrupt(phase),
        faults.Terminate(phase),
    ]
    if restarts:
        choices += 4 * [faults.KillAgain(at, member, draw.choice((0.0, 0.1, 0.5, 2.0)))]
    if containers:
        choices += 2 * [faults.ExhaustMemory(at, member), faults.ExhaustPids(at, member), faults.KillEngine(at)]
    else:
        choices += [faults.StepClock(draw.choice((at, phase)), seconds=draw.choice((-3600, -5, 5, 3600)))]
    return draw.choice(choices)
