"""Where each worker stands in decentralized training: the experiment's graph and rules, worker by worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.controller.spec import Circle
from testbed.emulation.routing import Routes
from testbed.planning.graphs import Graph, GraphError, Weights, fast_edges, make_graph, metropolis, uniform
from testbed.protocol import Place
from testbed.run import view
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment

#: The protocol of each strategy: D-PSGD is Hop's standard mode, by default with Metropolis weights.
PROTOCOLS = {"hop": "hop", "dpsgd": "hop", "sgp": "sgp", "adpsgd": "adpsgd", "prague": "prague", "netmax": "netmax"}

#: The protocols in which members wait for each other's updates, so that gaps are bounded.
SYNCHRONOUS = ("hop", "sgp")


class Placement:
    """An experiment's members in their graph. SpecError when its workers make no such graph, or no such protocol."""

    def __init__(self, experiment: Experiment) -> None:
        self._sync = experiment.spec.sync
        self._protocol = PROTOCOLS[self._sync.strategy]
        try:
            self.graph = _graph(experiment)
            self._weights = self._weigh()
            self._active = self.graph.sides()[0] if self._protocol == "adpsgd" else ()
        except GraphError as error:
            rule, _, remedy = str(error).partition("; ")
            fault = Fault("sync.graph", rule, remedy or "another graph, or another number of workers")
            raise SpecError(experiment.file, [fault]) from None
        if faults := self._too_few():
            raise SpecError(experiment.file, faults)

    @property
    def circle(self) -> Circle:
        """What the controller needs to know."""
        sync = self._sync
        return Circle(
            edges=tuple(sorted(self.graph.edges)),
            bounded=self._protocol in SYNCHRONOUS,
            survives=self._protocol == "hop",
            max_ig=sync.max_ig,
            backup=sync.backup,
            staleness=sync.staleness,
            notify_ack=sync.mode == "notify_ack",
        )

    def place(self, member: str) -> Place:
        """What a worker is told."""
        sources, targets = self.graph.sources(member), self.graph.targets(member)
        partners = tuple(other for other in self.graph.members if other in {*sources, *targets})
        return Place(self._protocol, sources, targets, self._weights[member], partners, self._rules(member))

    def _rules(self, member: str) -> Mapping[str, Any]:
        sync = self._sync
        match self._protocol:
            case "hop":
                return {
                    "max_ig": sync.max_ig,
                    "backup": sync.backup,
                    "staleness": sync.staleness,
                    "max_jump": sync.skip.jump if sync.skip else 1,
                    "quantile": sync.skip.quantile if sync.skip else 0.0,
                    "notify_ack": sync.mode == "notify_ack",
                    "parallel": sync.form == "parallel",
                }
            case "adpsgd":
                return {"active": member in self._active}
            case "prague":
                return {"group": sync.group, "generator": self.graph.members[0]}
        return {}

    def _weigh(self) -> Weights:
        kind = self._sync.weights or ("metropolis" if self._sync.strategy == "dpsgd" else "uniform")
        return metropolis(self.graph) if kind == "metropolis" else uniform(self.graph)

    def _too_few(self) -> list[Fault]:
        fewest = min(len(self.graph.sources(member)) for member in self.graph.members)
        faults = []
        if self._sync.backup > fewest:
            rule = f"{self._sync.backup}, where some member has {fewest} in-neighbours"
            faults.append(Fault("sync.backup", rule, f"{fewest} at most"))
        if self._protocol == "prague" and self._sync.group > len(self.graph.members):
            rule = f"{self._sync.group}, where there are {len(self.graph.members)} workers"
            faults.append(Fault("sync.group", rule, f"{len(self.graph.members)} at most"))
        return faults


def _graph(experiment: Experiment) -> Graph:
    sync, topology = experiment.spec.sync, experiment.topology
    names = tuple(worker.name for worker in topology.workers)
    if sync.strategy == "prague":
        return make_graph("complete", names)
    if sync.graph != "network":
        return make_graph(sync.graph, names)
    states = view.declared_states(topology)
    model_bytes = experiment.spec.round_bytes
    return fast_edges(view.view_of(topology, Routes.over(topology), states, model_bytes, 0.0, "declared"), sync.degree)
