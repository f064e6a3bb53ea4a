"""Where each worker stands in decentralized training: the experiment's graph and rules, worker by worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.controller.spec import Circle
from testbed.planning import PolicyError, make_policy
from testbed.planning.graphs import Graph, GraphError, fast_edges, make_graph
from testbed.protocol import Place
from testbed.run import hybrid
from testbed.run.view import declared_view
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment

#: The protocol of each strategy: D-PSGD is Hop's standard mode, by default with Metropolis weights.
PROTOCOLS = {
    **{name: name for name in ("hop", "sgp", "adpsgd", "prague", "netmax", "fedasync", "staggered")},
    "dpsgd": "hop",
}

#: The protocols in which members are given a model that is not theirs alone: the first evaluates for all.
SHARED = ("fedasync", "staggered")

#: The protocols in which members wait for each other's updates, so that gaps are bounded.
SYNCHRONOUS = ("hop", "sgp")


class Placement:
    """An experiment's members in their graph. SpecError when its workers make no such graph, or no such protocol.

    `groups` are the rules of staggered ones, as HybridRules has them; empty under other protocols.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._sync = experiment.spec.sync
        self._protocol = PROTOCOLS[self._sync.strategy]
        self._sites = _sites(experiment) if self._sync.between == "sites" else {}
        try:
            self.groups = _groups(experiment) if self._protocol == "staggered" else {}
            self.graph = hybrid.graph_of(self.groups) if self.groups else _graph(experiment, tuple(self._sites))
            self._weights = self.circle.weigh(self.graph)
            self._active = self.graph.sides()[0] if self._protocol == "adpsgd" else ()
        except GraphError as error:
            rule, _, remedy = str(error).partition("; ")
            fault = Fault("sync.graph", rule, remedy or "another graph, or another number of workers")
            raise SpecError(experiment.file, [fault]) from None
        except PolicyError as error:
            fault = Fault("sync.policy", str(error), "a policy and options as docs/experiment.md lists them")
            raise SpecError(experiment.file, [fault]) from None
        if faults := [*self._too_few(self.graph), *self._unmakeable(experiment)]:
            raise SpecError(experiment.file, faults)

    @property
    def circle(self) -> Circle:
        """What the controller needs to know."""
        sync = self._sync
        return Circle(
            edges=tuple(sorted(self.graph.edges)),
            leaders=self.graph.members if self._sites else (),
            bounded=self._protocol in SYNCHRONOUS,
            survives=self._protocol == "hop",
            weights=sync.weights or ("metropolis" if sync.strategy == "dpsgd" else "uniform"),
            max_ig=sync.max_ig,
            backup=sync.backup,
            staleness=sync.staleness,
            notify_ack=sync.mode == "notify_ack",
        )

    def place(self, member: str) -> Place:
        """What a worker is told."""
        if member not in self.graph.members:
            leader = next(leader for leader, workers in self._sites.items() if member in workers)
            return Place("worker", (), (), {}, (leader,), {"leader": leader})
        sources, targets = self.graph.sources(member), self.graph.targets(member)
        partners = tuple(other for other in self.graph.members if other in {*sources, *targets})
        rules, site = self._rules(member), self._sites.get(member)
        if site is None:
            steps, evaluates = self._steps(member), self._evaluates(member)
            return Place(self._protocol, sources, targets, self._weights[member], partners, rules, steps, evaluates)
        rules = {**rules, "site": site}
        return Place("leader", sources, targets, self._weights[member], (*partners, *site), rules)

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
            case "fedasync":
                server = max(self.graph.members, key=lambda one: len(self.graph.sources(one)))
                return {"server": server}
            case "staggered":
                return self.groups
        return {}

    def _evaluates(self, member: str) -> tuple[int, int] | None:
        """The iterations that begin with what is to be evaluated: of staggered groups, after their exchanges."""
        if self._protocol in SHARED and member != self.graph.members[0]:
            return None
        if not self.groups:
            return 1, 0
        return next((team["period"], team["phase"]) for team in self.groups["teams"] if member in team["members"])

    def _steps(self, member: str) -> int:
        match self._protocol:
            case "fedasync":
                return self._sync.every
            case "staggered":
                return int(self.groups["steps"][member])
        return 1

    def _unmakeable(self, experiment: Experiment) -> list[Fault]:
        """Events' graphs that these workers do not make."""
        faults: list[Fault] = []
        for number, event in enumerate(experiment.spec.events):
            if event.graph is None:
                continue
            field = f"events.{number}.graph"
            try:
                graph = make_graph(event.graph, self.graph.members)
                self.circle.weigh(graph)
            except GraphError as error:
                rule, _, remedy = str(error).partition("; ")
                faults.append(Fault(field, rule, remedy or "another graph"))
            else:
                faults += self._too_few(graph)
        return faults

    def _too_few(self, graph: Graph) -> list[Fault]:
        fewest = min(len(graph.sources(member)) for member in graph.members)
        faults = []
        if self._sync.backup > fewest:
            rule = f"{self._sync.backup}, where some member has {fewest} in-neighbours"
            faults.append(Fault("sync.backup", rule, f"{fewest} at most"))
        if self._protocol == "prague" and self._sync.group > len(self.graph.members):
            rule = f"{self._sync.group}, where there are {len(self.graph.members)} workers"
            faults.append(Fault("sync.group", rule, f"{len(self.graph.members)} at most"))
        return faults


def _sites(experiment: Experiment) -> Mapping[str, tuple[str, ...]]:
    """Each site's other workers by its first, which stands for it."""
    sites: dict[str, list[str]] = {}
    for worker in experiment.topology.workers:
        sites.setdefault(worker.site, []).append(worker.name)
    return {leader: tuple(others) for leader, *others in sites.values()}


def _groups(experiment: Experiment) -> Mapping[str, Any]:
    return hybrid.rules_of(experiment.spec, declared_view(experiment.topology, experiment.spec.round_bytes))


def _graph(experiment: Experiment, leaders: tuple[str, ...]) -> Graph:
    sync = experiment.spec.sync
    names = leaders or tuple(worker.name for worker in experiment.topology.workers)
    if sync.strategy == "prague":
        return make_graph("complete", names)
    if sync.graph != "network" and sync.strategy != "fedasync":
        return make_graph(sync.graph, names)
    known = declared_view(experiment.topology, experiment.spec.round_bytes)
    if sync.strategy != "fedasync":
        return fast_edges(known, sync.degree)
    edges = {(child, parent) for tree in make_policy("star").plan(known).trees for child, parent in tree.reduce.items()}
    return Graph(names, frozenset(edges | {(parent, child) for child, parent in edges}))
