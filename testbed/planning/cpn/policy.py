"""The policy: the view's best grouping as a plan, with the reasons for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, get_args

from testbed.plan import Group, Plan, Tree
from testbed.planning.blueconnect import nested_rings
from testbed.planning.cost import CostModel
from testbed.planning.cpn.problem import Problem
from testbed.planning.cpn.schedule import Prices, schedule
from testbed.planning.cpn.search import Grouping, search
from testbed.planning.cpn.terms import Costs, Ring, Spatial
from testbed.planning.cpn.tour import bettered, nearest
from testbed.planning.fastest import fastest_tree, graph
from testbed.planning.policy import Policy, PolicyError, check_choice, check_switch, check_whole, register
from testbed.planning.ring import ring_trees
from testbed.planning.view import View

#: `search`: by the heuristic. `sites`: a group is a site. `random`: as many groups as sites, of equal size.
Groups = Literal["search", "sites", "random"]

USUAL = Prices()


@register("cpn")
@dataclass(frozen=True)
class Cpn(Policy):
    """Groups that reduce around a ring every round and among all at times: the CPN framework's hybrid hierarchy.

    Our reading of JICN 2025 (10.64509/jicn.12.39), whose abstract names the inputs (computing power and telemetry)
    and the aims (communication moved in time and in space), not the heuristic. `groups` says who forms them. With
    `temporal`, each has a period and a phase of its own; else all exchange in one round, every so many. `spatial`
    `leader`: one member exchanges for its group, to whom the others send; `sharded`: each of m exchanges 1/m.

    `every`: local steps of the fastest member in a round; `step_s`: seconds of one at speed 1; `labels`: each
    member's samples by label. `skew`, `stale` and `drift` are the cost's λ1, λ2, λ3 (`schedule`). `seed` is that of
    the search, which takes 0.5 s for a dozen members, 3 s for 500, and less from the plan in force.
    """

    every: int = 8
    step_s: float = 0.1
    labels: Mapping[str, Sequence[float]] = field(default_factory=dict)
    groups: Groups = "search"
    temporal: bool = True
    spatial: Spatial = "leader"
    skew: float = USUAL.skew
    stale: float = USUAL.stale
    drift: float = USUAL.drift
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "every", self.every, least=1)
        check_choice(self, "groups", self.groups, get_args(Groups))
        check_choice(self, "spatial", self.spatial, get_args(Spatial))
        check_switch(self, "temporal", self.temporal)
        for option in ("skew", "stale", "drift"):
            if not getattr(self, option) >= 0:
                raise PolicyError(f"cpn: {option} {getattr(self, option)!r} must be a number, at least 0")
        if not self.step_s > 0:
            raise PolicyError(f"cpn: step_s {self.step_s!r} must be the seconds of a step, above 0")
        check_whole(self, "seed", self.seed, least=0)

    def plan(self, view: View) -> Plan:
        problem = self._problem(view)
        return self._planned(view, problem, self._grouping(view, problem))

    def replan(self, view: View, last: Plan) -> Plan:
        """From the grouping in force, by what changes gain: the search from nothing would take its time again."""
        if self.groups != "search" or last.policy != self.name or last.members != view.names:
            return self.plan(view)
        problem = self._problem(view)
        number = {name: i for i, name in enumerate(problem.names)}
        parties = last.groups or (last.whole,)
        begin = [tuple(number[name] for name in party.members) for party in parties]
        return self._planned(
            view, problem, search(problem, self._prices, self.temporal, self.spatial, self.seed, begin)
        )

    def explain(self, view: View, plan: Plan) -> dict[str, Any]:
        """The cost J of the plan's groups, term by term."""
        problem = self._problem(view)
        number = {name: i for i, name in enumerate(problem.names)}
        parties = plan.groups or (plan.whole,)
        costs = Costs(problem, self.spatial)
        groups = [costs.of(tuple(number[name] for name in party.members)) for party in parties]
        when = schedule(groups, self._prices, self.temporal)
        return {
            "cost_s_per_step": when.cost,
            "slowest_s_per_step": max(when.step_s),
            "factor": {"skew": when.skew, "stale": when.stale, "drift": when.drift},
            "groups": [
                {
                    "members": [problem.names[i] for i in group.ring],
                    "leaders": [problem.names[i] for i in group.leaders],
                    "steps": {problem.names[i]: int(problem.steps[i]) for i in group.ring},
                    "period": period,
                    "phase": phase,
                    "s_per_step": step_s,
                    "compute_s": group.compute_s,
                    "ring_s": group.ring_s,
                    "rtt_s": group.rtt_s,
                    "transfer_s": group.transfer_s,
                    "skew_bits": group.skew,
                    "stale_rounds": group.stale,
                }
                for group, period, phase, step_s in zip(groups, when.periods, when.phases, when.step_s, strict=True)
            ],
        }

    @property
    def _prices(self) -> Prices:
        return Prices(self.skew, self.stale, self.drift)

    def _problem(self, view: View) -> Problem:
        if self.labels and set(self.labels) != set(view.names):
            odd = sorted(set(self.labels) ^ set(view.names))
            raise PolicyError(f"cpn: labels must be those of every member and nobody else; it is about {odd}")
        if len({len(counts) for counts in self.labels.values()}) > 1:
            raise PolicyError("cpn: labels must have as many counts for each member, one a label")
        return Problem.of(view, self.step_s, self.every, self.labels)

    def _grouping(self, view: View, problem: Problem) -> Grouping:
        if self.groups == "search":
            return search(problem, self._prices, self.temporal, self.spatial, self.seed)
        costs = Costs(problem, self.spatial)
        rings = [bettered(problem, nearest(problem, members)) for members in self._given(view)]
        terms = tuple(costs.of(ring) for ring in rings)
        return Grouping(terms, schedule(terms, self._prices, self.temporal))

    def _given(self, view: View) -> list[Ring]:
        """The groups of a rule that looks at no costs."""
        number = {name: i for i, name in enumerate(view.names)}
        sites = [tuple(number[name] for name in members) for members in view.sites().values()]
        if self.groups == "sites":
            return sites
        order = Random(self.seed).sample(range(len(number)), len(number))
        return [tuple(order[k :: len(sites)]) for k in range(len(sites))]

    def _planned(self, view: View, problem: Problem, grouping: Grouping) -> Plan:
        names = problem.names
        rings = [tuple(names[i] for i in group.ring) for group in grouping.groups]
        if len(rings) == 1:
            return self._plan(view, _checked(view, ring_trees(rings[0])))
        trees = self._among_all(view, problem, grouping)
        period = max(grouping.schedule.periods)
        if period == 1:
            return self._plan(view, trees)
        groups = tuple(Group(ring, tuple(_checked(view, ring_trees(ring)))) for ring in rings)
        return self._plan(view, trees, groups=groups, period=period)

    def _among_all(self, view: View, problem: Problem, grouping: Grouping) -> list[Tree]:
        names = problem.names
        rings = [tuple(names[i] for i in group.ring) for group in grouping.groups]
        if self.spatial == "sharded":
            sharded = nested_rings(view, rings, "two-opt")
            if all((u, v) in view.edges for u, v, _ in Group(view.names, tuple(sharded)).edges()):
                return sharded
        leaders = [names[group.leaders[0]] for group in grouping.groups]
        local = {m: leader for ring, leader in zip(rings, leaders, strict=True) for m in ring if m != leader}
        return [_best_root(view, leaders, local)]


def _best_root(view: View, leaders: Sequence[str], local: Mapping[str, str]) -> Tree:
    """The leaders' fastest-path tree that is predicted to be the fastest; where they do not meet, all members'."""
    model = CostModel(view)
    for among, below in ((leaders, local), (view.names, {})):
        edges = graph(view, set(among))
        found = [tree for root in among if (tree := fastest_tree(edges, root)) is not None]
        whole = [Tree(t.root, {**below, **t.reduce}, {**below, **t.broadcast}) for t in found]
        linked = [tree for tree in whole if all(_is_edge(view, *pair) for pair in tree.reduce.items())]
        if linked:
            return min(linked, key=lambda tree: model.predict(Plan(0, view.names, (tree,))).seconds)
    raise PolicyError("cpn: the members are not connected by edges")


def _is_edge(view: View, child: str, parent: str) -> bool:
    return (child, parent) in view.edges and (parent, child) in view.edges


def _checked(view: View, trees: Sequence[Tree]) -> Sequence[Tree]:
    """The trees; PolicyError when one of their edges is not there."""
    for tree in trees:
        for child, parent in tree.reduce.items():
            if (child, parent) not in view.edges:
                raise PolicyError(f"cpn: a ring needs an edge from {child} to {parent}, and there is none")
    return trees
