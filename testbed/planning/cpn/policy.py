"""The policy: the view's best grouping as a plan, with the reasons for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, get_args

from testbed.plan import Group, Plan, Tree
from testbed.planning.blueconnect import nested_rings
from testbed.planning.cost import CostModel
from testbed.planning.cpn.codecs import LADDER, thinning, with_codecs
from testbed.planning.cpn.judge import Judge, exchange_s
from testbed.planning.cpn.problem import Problem
from testbed.planning.cpn.schedule import PERIODS, Prices, schedule
from testbed.planning.cpn.search import Grouping, search
from testbed.planning.cpn.terms import Costs, Ring, Spatial, Terms
from testbed.planning.cpn.tour import bettered, nearest
from testbed.planning.fastest import fastest_tree, graph
from testbed.planning.packing import Packing
from testbed.planning.policy import Policy, PolicyError, check_choice, check_switch, check_whole, register
from testbed.planning.ring import ring_trees
from testbed.planning.view import View

#: `search`: by the heuristic. `sites`: a group is a site. `random`: as many groups as sites, of equal size.
Groups = Literal["search", "sites", "random"]

USUAL = Prices()

#: At 1 a plan has no groups, and whoever plans next would not know them.
LEAST_PERIOD = 2


@register("cpn")
@dataclass(frozen=True)
class Cpn(Policy):
    """Groups that reduce around a ring every round and among all at times: the CPN framework's hybrid hierarchy.

    Each member is told how many local steps it takes to a round, by its computing power.

    Our reading of JICN 2025 (10.64509/jicn.12.39), whose abstract names the inputs (computing power and telemetry)
    and the aims (communication moved in time and in space), not the heuristic. `groups` says who forms them. With
    `temporal`, each has a period and a phase of its own; else all exchange in one round, every so many. `spatial`
    `leader`: one member exchanges for its group, to whom the others send, along a tree; `spread`: along trees packed
    into all links between the leaders; `sharded`: each of m members exchanges 1/m.

    `overlap`: rounds go on beside the next one's steps. `codecs`: exchanges go through the codec of least cost, the
    stronger the slower the links are.

    `every`: local steps of the fastest member in a round; `step_s`: seconds of one at speed 1; `labels`: each
    member's samples by label. `skew`, `stale` and `drift` are the cost's λ1, λ2, λ3 (`schedule`). `seed` is that of
    the search, which takes 0.7 s for a dozen members, 5 s for 500, and less from the plan in force.
    """

    every: int = 8
    step_s: float = 0.1
    labels: Mapping[str, Sequence[float]] = field(default_factory=dict)
    groups: Groups = "search"
    temporal: bool = True
    spatial: Spatial = "leader"
    overlap: bool = False
    codecs: bool = False
    skew: float = USUAL.skew
    stale: float = USUAL.stale
    drift: float = USUAL.drift
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "every", self.every, least=1)
        check_choice(self, "groups", self.groups, get_args(Groups))
        check_choice(self, "spatial", self.spatial, get_args(Spatial))
        for switch in ("temporal", "overlap", "codecs"):
            check_switch(self, switch, getattr(self, switch))
        for option in ("skew", "stale", "drift"):
            if not getattr(self, option) >= 0:
                raise PolicyError(f"cpn: {option} {getattr(self, option)!r} must be a number, at least 0")
        if not self.step_s > 0:
            raise PolicyError(f"cpn: step_s {self.step_s!r} must be the seconds of a step, above 0")
        check_whole(self, "seed", self.seed, least=0)

    def plan(self, view: View) -> Plan:
        return self._best(view, ())

    def replan(self, view: View, last: Plan) -> Plan:
        """From the grouping in force, by what changes gain: the search from nothing would take its time again."""
        if last.policy != self.name or last.members != view.names:
            return self.plan(view)
        number = {name: i for i, name in enumerate(view.names)}
        parties = last.groups or (last.whole,)
        return self._best(view, [tuple(number[name] for name in party.members) for party in parties])

    def _best(self, view: View, begin: Sequence[Ring]) -> Plan:
        """The plan of the groups that are asked for. The search goes by estimates of exchanges, since trees are not
        known while groups still form: what it finds is held against the sites, each a group, plan against plan."""
        problem = self._problem(view)
        if self.groups != "search":
            return self._planned(view, problem, self._grouping(view, problem, self.groups))
        found = search(problem, self._prices, self.temporal, self.spatial, self.seed, begin)
        plans = [self._planned(view, problem, found)]
        if len(view.sites()) > 1:
            with suppress(PolicyError):  # a site's members may not reach each other
                plans.append(self._planned(view, problem, self._grouping(view, problem, "sites")))
        return min(plans, key=lambda plan: self._compared(view, problem, plan))

    def _compared(self, view: View, problem: Problem, plan: Plan) -> float:
        """J of a plan, or where groups have periods of their own, of its groups: no plan says how those exchange."""
        if not self.temporal:
            return self.cost(view, plan)
        return schedule(self._terms(problem, plan), self._prices, self.temporal).cost

    @property
    def measure(self) -> Callable[[View, Plan], float]:
        return self.cost

    def cost(self, view: View, plan: Plan) -> float:
        """J of a plan at its period, through its codec: seconds per local step (`judge`)."""
        through = thinning(plan)
        judge = Judge(self._terms(self._problem(view, plan.steps), plan), self._prices)
        return judge.cost(plan.period, exchange_s(plan, view, through), through)

    def explain(self, view: View, plan: Plan) -> dict[str, Any]:
        """The cost J of the plan's groups, term by term, and that of the plan."""
        problem = self._problem(view)
        groups = self._terms(problem, plan)
        when = schedule(groups, self._prices, self.temporal)
        return {
            "cost_s_per_step": when.cost,
            "plan_s_per_step": self.cost(view, plan),
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
        return Prices(self.skew, self.stale, self.drift, self.overlap)

    def _terms(self, problem: Problem, plan: Plan) -> list[Terms]:
        """What a plan's groups cost."""
        number = {name: i for i, name in enumerate(problem.names)}
        costs = Costs(problem, self.spatial)
        parties = plan.groups or (plan.whole,)
        return [costs.of(tuple(number[name] for name in party.members)) for party in parties]

    def _problem(self, view: View, steps: Mapping[str, int] | None = None) -> Problem:
        if self.labels and set(self.labels) != set(view.names):
            odd = sorted(set(self.labels) ^ set(view.names))
            raise PolicyError(f"cpn: labels must be those of every member and nobody else; it is about {odd}")
        if len({len(counts) for counts in self.labels.values()}) > 1:
            raise PolicyError("cpn: labels must have as many counts for each member, one a label")
        return Problem.of(view, self.step_s, self.every, self.labels, steps)

    def _grouping(self, view: View, problem: Problem, rule: Groups) -> Grouping:
        """The groups of a rule that looks at no costs."""
        costs = Costs(problem, self.spatial)
        rings = [bettered(problem, nearest(problem, members)) for members in self._given(view, rule)]
        terms = tuple(costs.of(ring) for ring in rings)
        return Grouping(terms, schedule(terms, self._prices, self.temporal))

    def _given(self, view: View, rule: Groups) -> list[Ring]:
        number = {name: i for i, name in enumerate(view.names)}
        sites = [tuple(number[name] for name in members) for members in view.sites().values()]
        if rule == "sites":
            return sites
        order = Random(self.seed).sample(range(len(number)), len(number))
        return [tuple(order[k :: len(sites)]) for k in range(len(sites))]

    def _planned(self, view: View, problem: Problem, grouping: Grouping) -> Plan:
        names = problem.names
        rings = [tuple(names[i] for i in group.ring) for group in grouping.groups]
        steps = {name: int(count) for name, count in zip(names, problem.steps, strict=True)}
        if len(rings) == 1:
            return replace(self._plan(view, _checked(view, ring_trees(rings[0]))), steps=steps)
        trees = self._among_all(view, problem, grouping)
        groups = tuple(Group(ring, tuple(_checked(view, ring_trees(ring)))) for ring in rings)
        plan = self._plan(view, trees, groups=groups, period=LEAST_PERIOD)
        judge = Judge(grouping.groups, self._prices)
        costs = {
            (period, rung): judge.cost(period, seconds, rung)
            for rung in (LADDER if self.codecs else LADDER[:1])
            for seconds in [exchange_s(plan, view, rung)]
            for period in PERIODS.tolist()
            if period >= LEAST_PERIOD
        }
        period, through = min(costs, key=lambda choice: costs[choice])
        return with_codecs(replace(plan, period=period, steps=steps), view, through)

    def _among_all(self, view: View, problem: Problem, grouping: Grouping) -> list[Tree]:
        names = problem.names
        rings = [tuple(names[i] for i in group.ring) for group in grouping.groups]
        if self.spatial == "sharded":
            sharded = nested_rings(view, rings, "two-opt")
            if all((u, v) in view.edges for u, v, _ in Group(view.names, tuple(sharded)).edges()):
                return sharded
        leaders = [names[group.leaders[0]] for group in grouping.groups]
        local = {m: leader for ring, leader in zip(rings, leaders, strict=True) for m in ring if m != leader}
        if self.spatial == "spread" and (spread := _spread(view, leaders, local)):
            return spread
        return [_best_root(view, leaders, local)]


def _spread(view: View, leaders: Sequence[str], local: Mapping[str, str]) -> list[Tree]:
    """Trees packed into the links between the leaders, each with all members; none where leaders do not meet."""
    try:
        packed = Packing().plan(view.among(leaders)).trees
    except PolicyError:
        return []
    whole = [replace(t, reduce={**local, **t.reduce}, broadcast={**local, **t.broadcast}) for t in packed]
    return whole if all(_is_edge(view, *pair) for pair in local.items()) else []


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
