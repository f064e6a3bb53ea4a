"""Where each worker stands in decentralized training: the experiment's graph and rules, worker by worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from testbed.controller.spec import Circle
from testbed.planning import PolicyError, make_policy
from testbed.planning.graphs import Graph, GraphError, fast_edges, make_graph
from testbed.protocol import Place
from testbed.run import hybrid
from testbed.run.view import declared_view
from testbed.schemes.dpsgd import DpsgdOptions
from testbed.schemes.graph import DEGREE, InGraph
from testbed.schemes.hop import HopOptions
from testbed.schemes.prague import PragueOptions
from testbed.schemes.staggered import StaggeredOptions
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
        self._own = experiment.spec.sync.own
        self._protocol = PROTOCOLS[experiment.spec.sync.strategy]
        self._sites = _sites(experiment) if isinstance(self._own, HopOptions) and self._own.between == "sites" else {}
        try:
            self.groups = _groups(experiment, self._own) if isinstance(self._own, StaggeredOptions) else {}
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
        hop = self._own if isinstance(self._own, HopOptions) else HopOptions()
        return Circle(
            edges=tuple(sorted(self.graph.edges)),
            leaders=self.graph.members if self._sites else (),
            bounded=self._protocol in SYNCHRONOUS,
            survives=self._protocol == "hop",
            weights=self._weighing,
            max_ig=hop.max_ig,
            backup=hop.backup,
            staleness=hop.staleness,
            notify_ack=hop.mode == "notify_ack",
        )

    @property
    def _weighing(self) -> Literal["uniform", "metropolis"]:
        match self._own:
            case DpsgdOptions(weights=weights):
                return weights or "metropolis"
            case HopOptions(weights=weights):
                return weights or "uniform"
        return "uniform"

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
        match self._own:
            case HopOptions() as own:
                return {
                    "max_ig": own.max_ig,
                    "backup": own.backup,
                    "staleness": own.staleness,
                    "max_jump": own.skip.jump if own.skip else 1,
                    "quantile": own.skip.quantile if own.skip else 0.0,
                    "notify_ack": own.mode == "notify_ack",
                    "parallel": own.form == "parallel",
                }
            case DpsgdOptions() as own:
                return {"parallel": own.form == "parallel"}
            case PragueOptions() as own:
                return {"group": own.group, "generator": self.graph.members[0]}
            case StaggeredOptions():
                return self.groups
        if self._protocol == "adpsgd":
            return {"active": member in self._active}
        if self._protocol == "fedasync":
            return {"server": max(self.graph.members, key=lambda one: len(self.graph.sources(one)))}
        return {}

    def _evaluates(self, member: str) -> tuple[int, int] | None:
        """The iterations that begin with what is to be evaluated: of staggered groups, after their exchanges."""
        if self._protocol in SHARED and member != self.graph.members[0]:
            return None
        if not self.groups:
            return 1, 0
        return next((team["period"], team["phase"]) for team in self.groups["teams"] if member in team["members"])

    def _steps(self, member: str) -> int:
        return int(self.groups["steps"][member]) if self.groups else self._own.local_steps

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
        own = self._own
        if isinstance(own, HopOptions) and own.backup > fewest:
            rule = f"{own.backup}, where some member has {fewest} in-neighbours"
            faults.append(Fault("sync.backup", rule, f"{fewest} at most"))
        if isinstance(own, PragueOptions) and own.group > len(self.graph.members):
            rule = f"{own.group}, where there are {len(self.graph.members)} workers"
            faults.append(Fault("sync.group", rule, f"{len(self.graph.members)} at most"))
        return faults


def _sites(experiment: Experiment) -> Mapping[str, tuple[str, ...]]:
    """Each site's other workers by its first, which stands for it."""
    sites: dict[str, list[str]] = {}
    for worker in experiment.topology.workers:
        sites.setdefault(worker.site, []).append(worker.name)
    return {leader: tuple(others) for leader, *others in sites.values()}


def _groups(experiment: Experiment, own: StaggeredOptions) -> Mapping[str, Any]:
    return hybrid.rules_of(experiment.spec, own, declared_view(experiment.topology, experiment.spec.round_bytes))


def _graph(experiment: Experiment, leaders: tuple[str, ...]) -> Graph:
    own = experiment.spec.sync.own
    names = leaders or tuple(worker.name for worker in experiment.topology.workers)
    if isinstance(own, InGraph) and own.graph != "network":
        return make_graph(own.graph, names)
    if isinstance(own, PragueOptions):
        return make_graph("complete", names)
    known = declared_view(experiment.topology, experiment.spec.round_bytes)
    if isinstance(own, InGraph):
        return fast_edges(known, own.degree or DEGREE)
    edges = {(child, parent) for tree in make_policy("star").plan(known).trees for child, parent in tree.reduce.items()}
    return Graph(names, frozenset(edges | {(parent, child) for child, parent in edges}))
