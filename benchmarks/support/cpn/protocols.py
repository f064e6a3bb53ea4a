"""The protocols of `benchmarks.cpn`: the hybrid, its ablations, and the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.run.view import declared_states
from testbed.spec.topology import Topology

TOPOLOGY = Path(__file__).parents[3] / "topologies" / "cpn-12.yaml"


@dataclass(frozen=True, slots=True)
class Protocol:
    """An experiment's `sync`, `controller` and `events`.

    The model that all members agreed on is evaluated every `evaluate_every` rounds: about every two seconds, in the
    time that the slowest region's steps leave.
    """

    sync: Mapping[str, Any]
    evaluate_every: int = 1
    controller: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()


#: Local steps of local SGD and of FedAvg.
EVERY = 8
#: Local steps of the fastest member where each does as many as it can: 0.8 s, in which the slowest do two.
MOST = 16
HYBRID: Mapping[str, Any] = {
    "strategy": "hybrid",
    "every": MOST,
    "policy": "cpn",
    "options": {"codecs": True, "spatial": "spread"},
    # An average: a momentum that builds up over ten exchanges is of no use to a run of as many.
    "outer": {"learning_rate": 1.0, "momentum": 0.0},
}
#: The conductor, whose rounds are all global.
AUTO: Mapping[str, Any] = {"strategy": "auto"}
#: The first plan stays in force, whatever links do.
HELD = {"hold": True}
#: All links of one region fall to a tenth at 5 s: of the region over which the first plan's trees exchange most.
FALL: Sequence[Mapping[str, Any]] = [
    {"at": "5s", "change": {"link": name, "rate": f"{state.rate_bps * 0.1 / 1e6:g}mbit"}}
    for name, state in declared_states(Topology.load(TOPOLOGY)).items()
    if "r1" in name.split("->")
]

#: Each group has rounds of its own, and waits for no group that is up to two rounds behind.
STAGGERED: Mapping[str, Any] = {
    "strategy": "staggered",
    "every": MOST,
    "policy": "cpn",
    "codec": "fp16",
    "staleness": 2,
    "outer": HYBRID["outer"],
}

OURS, FLAT, CONDUCTED = "cpn", "packing", "auto"

ABLATIONS: Mapping[str, Protocol] = {
    "overlap": Protocol({**HYBRID, "overlap": True}, 2),
    "leader": Protocol({**HYBRID, "options": {"codecs": True, "spatial": "leader"}}, 2),
    "sharded": Protocol({**HYBRID, "options": {"codecs": True, "spatial": "sharded"}}, 2),
    "random groups": Protocol({**HYBRID, "options": {**HYBRID["options"], "groups": "random"}}, 2),
    "no groups": Protocol({**HYBRID, "policy": "packing", "options": {}, "period": 1}, 2),
    "staggered": Protocol(STAGGERED, 2),
    "in step": Protocol({**STAGGERED, "staleness": 0, "options": {"temporal": False}}, 2),
    "no codecs": Protocol({**HYBRID, "options": {"spatial": "spread"}}, 2),
}

BASELINES: Mapping[str, Protocol] = {
    "ring": Protocol({"strategy": "gradients", "policy": "ring"}),
    FLAT: Protocol({"strategy": "gradients", "policy": "packing"}),
    "hips": Protocol({"strategy": "gradients", "policy": "hips"}),
    "hfa": Protocol({"strategy": "hierarchical", "every": EVERY, "policy": "hips", "options": {"period": 4}}),
    "blueconnect": Protocol({"strategy": "gradients", "policy": "blueconnect"}),
    "local sgd": Protocol({"strategy": "local_sgd", "every": EVERY, "policy": "packing"}),
    "diloco 8": Protocol({"strategy": "diloco", "every": 8, "policy": "packing"}),
    "diloco 32": Protocol({"strategy": "diloco", "every": 32, "policy": "packing"}),
    "diloco 128": Protocol({"strategy": "diloco", "every": 128, "policy": "packing"}),
    "fedavg": Protocol({"strategy": "local_sgd", "every": EVERY, "policy": "star"}),
    # FedProx lets each member do as many steps as it can, and pulls it back (Li et al. 2020, algorithm 2).
    "fedprox": Protocol(
        {"strategy": "hybrid", "every": MOST, "policy": "star", "period": 1, "normalise": False, "prox": 0.01}
        | {"outer": HYBRID["outer"]},
    ),
    "fedasync": Protocol({"strategy": "fedasync", "every": EVERY}),
    CONDUCTED: Protocol(AUTO, 2),
    "geography": Protocol({"strategy": "hierarchical", "every": EVERY, "policy": "hierarchical", "period": 4}),
}

#: Protocols whose links fall; the hybrid also with the first plan held.
EVENTS: Mapping[str, Protocol] = {
    "fall": Protocol(HYBRID, 2, events=FALL),
    "fall, held": Protocol(HYBRID, 2, HELD, FALL),
    "fall, auto": Protocol(AUTO, 2, events=FALL),
}

PROTOCOLS: Mapping[str, Protocol] = {OURS: Protocol(HYBRID, 2), **BASELINES, **ABLATIONS, **EVENTS}
