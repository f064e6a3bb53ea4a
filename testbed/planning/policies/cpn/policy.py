"""The policy `cpn`: the best grouping of a view as a plan, with the figures behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, get_args

from testbed.plan import Group, Plan, Tree
from testbed.planning.cost import best_tree
from testbed.planning.fastest import fastest_tree, graph
from testbed.planning.policies.cpn.plan_cost import CODECS, PlanCost, exchange_s, strongest_codec, with_codecs
from testbed.planning.policies.cpn.schedule import PERIODS, Prices, schedule
from testbed.planning.policies.cpn.search import Grouping, bettered, nearest, search
from testbed.planning.policies.cpn.terms import Costs, Problem, Ring, Spatial, Terms
from testbed.planning.policies.packing import Packing
from testbed.planning.policies.ring import nested_rings, ring_trees
from testbed.planning.policy import (
    Policy,
    PolicyError,
    check_choice,
    check_edges,
    check_number,
    check_switch,
    check_whole,
    is_number,
    register,
)
from testbed.planning.view import View

#: `search`: groups of the heuristic. `sites`: each site is a group. `random`: as many groups as sites, of equal size.
Groups = Literal["search", "sites", "random"]

USUAL = Prices()

#: The shortest period of a plan with groups. At 1 a plan has no groups, with which the next planning could begin.
LEAST_PERIOD = 2


@register("cpn")
@dataclass(frozen=True)
class Cpn(Policy):
    """The CPN framework's hybrid hierarchy: groups reduce around a ring every round, and among all every few rounds.

    This is our reading of JICN 2025 (10.64509/jicn.12.39), whose abstract names the inputs (computing power and
    telemetry) and the aims (communication moved in time and in space), but not the heuristic. Each member takes local
    steps in proportion to its computing power. The search takes 0.7 s for a dozen members, 5 s for 500, and less from
    the plan in force.
    """

    #: Local steps of the fastest member in a round.
    every: int = 8
    #: Seconds of a local step at speed 1.
    step_s: float = 0.1
    #: Each member's samples by label; empty where labels are unknown.
    labels: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: How members form groups.
    groups: Groups = "search"
    #: Whether each group has a period and a phase of its own; if not, all groups exchange in the same rounds.
    temporal: bool = True
    #: `leader`: one member, to which the others send, exchanges for its group along a tree. `spread`: the leader
    #: exchanges along trees packed into all links between leaders. `sharded`: each of m members exchanges 1/m.
    spatial: Spatial = "leader"
    #: Whether rounds overlap the next round's steps.
    overlap: bool = False
    #: Whether exchanges go through the codec of least cost.
    codecs: bool = False
    #: λ1: the part that a bit of label skew adds to the cost.
    skew: float = USUAL.skew
    #: λ2: the part that a round of staleness adds to the cost.
    stale: float = USUAL.stale
    #: λ3: the part that a local step between exchanges adds to the cost.
    drift: float = USUAL.drift
    #: The seed of the search.
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "every", self.every, least=1)
        check_choice(self, "groups", self.groups, get_args(Groups))
        check_choice(self, "spatial", self.spatial, get_args(Spatial))
        for switch in ("temporal", "overlap", "codecs"):
            check_switch(self, switch, getattr(self, switch))
        for option in ("skew", "stale", "drift"):
            check_number(self, option, getattr(self, option))
        check_number(self, "step_s", self.step_s, above=True)
        check_whole(self, "seed", self.seed, least=0)
        if not isinstance(self.labels, Mapping) or not all(map(_are_counts, self.labels.values())):
            rule = "must give each member the list of its samples by label, numbers of at least 0, not all 0"
            text = f"cpn: labels {self.labels!r} {rule}"
            raise PolicyError(text, field="labels", given=self.labels)

    @property
    def makes_groups(self) -> bool:
        """True: it makes groups, unless one group of all members costs least."""
        return True

    def plan(self, view: View) -> Plan:
        """Return the plan of the groups that the option `groups` asks for, at their best period."""
        return self._best(view, ())

    def replan(self, view: View, last: Plan) -> Plan:
        """Return the plan that changes from the grouping in force lead to, in less time than a search from nothing."""
        if last.policy != self.name or last.members != view.names:
            return self.plan(view)
        number = {name: i for i, name in enumerate(view.names)}
        return self._best(view, [tuple(number[name] for name in ring) for ring in _rings(last)])

    def _best(self, view: View, begin: Sequence[Ring]) -> Plan:
        """Return the plan of the groups that the option `groups` asks for.

        The search estimates exchanges, because trees are unknown while groups still form. Its plan is therefore
        compared with the plan whose groups are the sites.
        """
        problem = self._problem(view)
        if self.groups != "search":
            return self._planned(view, problem, self._grouping(view, problem, self.groups))
        found = search(problem, self._prices, self.temporal, self.spatial, self.seed, begin)
        plans = [self._planned(view, problem, found)]
        if len(view.sites()) > 1:
            with suppress(PolicyError):  # the members of a site may not reach each other
                plans.append(self._planned(view, problem, self._grouping(view, problem, "sites")))
        return min(plans, key=lambda plan: self._search_cost(view, problem, plan))

    def _search_cost(self, view: View, problem: Problem, plan: Plan) -> float:
        """Return J of a plan, or of its groups if these have periods of their own, which a plan does not describe."""
        if not self.temporal:
            return self.cost(view, plan)
        return schedule(self._terms(problem, plan), self._prices, self.temporal).cost

    @property
    def measure(self) -> Callable[[View, Plan], float]:
        """The cost J by which swaps are judged; see `cost`."""
        return self.cost

    def cost(self, view: View, plan: Plan) -> float:
        """Return J of a plan at its period and through its codec, in seconds per local step (`plan_cost`)."""
        through = strongest_codec(plan)
        costs = PlanCost(self._terms(self._problem(view, plan.steps), plan), self._prices)
        return costs.per_step(plan.period, exchange_s(plan, view, through), through)

    def explain(self, view: View, plan: Plan) -> dict[str, Any]:
        """Return the cost J of the plan's groups, term by term, and the cost of the plan."""
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
                    **{name: getattr(group, name) for name in ("compute_s", "ring_s", "rtt_s", "transfer_s")},
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
        number = {name: i for i, name in enumerate(problem.names)}
        costs = Costs(problem, self.spatial)
        return [costs.of(tuple(number[name] for name in ring)) for ring in _rings(plan)]

    def _problem(self, view: View, steps: Mapping[str, int] | None = None) -> Problem:
        if self.labels and set(self.labels) != set(view.names):
            odd = sorted(set(self.labels) ^ set(view.names))
            text = f"cpn: labels must name every member of the view and no other; compare {', '.join(odd)}"
            raise PolicyError(text, field="labels", given=odd)
        if len({len(counts) for counts in self.labels.values()}) > 1:
            raise PolicyError(
                "cpn: labels must have one count for each label, equally many for each member", field="labels"
            )
        return Problem.of(view, self.step_s, self.every, self.labels, steps)

    def _grouping(self, view: View, problem: Problem, rule: Groups) -> Grouping:
        """Return the groups of a rule that does not depend on costs."""
        costs = Costs(problem, self.spatial)
        rings = [bettered(problem, nearest(problem, members)) for members in self._ruled(view, rule)]
        terms = tuple(costs.of(ring) for ring in rings)
        return Grouping(terms, schedule(terms, self._prices, self.temporal))

    def _ruled(self, view: View, rule: Groups) -> list[Ring]:
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
            return replace(self._plan(view, _ring_within(view, rings[0])), steps=steps)
        trees = _trees_among(view, self.spatial, rings, [names[group.leaders[0]] for group in grouping.groups])
        groups = tuple(Group(ring, tuple(_ring_within(view, ring))) for ring in rings)
        plan = self._plan(view, trees, groups=groups, period=LEAST_PERIOD)
        plan_cost = PlanCost(grouping.groups, self._prices)
        costs = {
            (period, codec): plan_cost.per_step(period, seconds, codec)
            for codec in (CODECS if self.codecs else CODECS[:1])
            for seconds in [exchange_s(plan, view, codec)]
            for period in PERIODS.tolist()
            if period >= LEAST_PERIOD
        }
        period, through = min(costs, key=lambda choice: costs[choice])
        return with_codecs(replace(plan, period=period, steps=steps), view, through)


def _are_counts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(is_number, value)) and sum(value) > 0


def _trees_among(view: View, spatial: Spatial, rings: Sequence[tuple[str, ...]], leaders: Sequence[str]) -> list[Tree]:
    """Return the trees along which the groups, each a ring with a leader, exchange.

    If the view lacks edges that `spatial` needs, the groups exchange along one tree of the leaders. Raises PolicyError
    if the view has no such tree either.
    """
    if spatial == "sharded":
        sharded = nested_rings(view, rings, "two-opt")
        if all((u, v) in view.edges for u, v, _ in Group(view.names, tuple(sharded)).edges()):
            return sharded
    local = {m: leader for ring, leader in zip(rings, leaders, strict=True) for m in ring if m != leader}
    if spatial == "spread" and (spread := _spread(view, leaders, local)):
        return spread
    return [_best_root(view, leaders, local)]


def _ring_within(view: View, members: Sequence[str]) -> Sequence[Tree]:
    """Return the trees of a ring around `members`. Raises PolicyError if the view lacks one of its edges."""
    trees = ring_trees(members)
    check_edges("cpn", view, Group(tuple(members), tuple(trees)))
    return trees


def _spread(view: View, leaders: Sequence[str], local: Mapping[str, str]) -> list[Tree]:
    """Return trees packed into the links between the leaders, each with all members; none if edges are missing."""
    try:
        packed = Packing().plan(view.among(leaders)).trees
    except PolicyError:
        return []
    whole = [replace(t, reduce={**local, **t.reduce}, broadcast={**local, **t.broadcast}) for t in packed]
    return whole if all(_is_edge(view, *pair) for pair in local.items()) else []


def _best_root(view: View, leaders: Sequence[str], local: Mapping[str, str]) -> Tree:
    """Return the leaders' fastest-path tree with the best prediction, or all members' if the leaders lack edges."""
    for among, below in ((leaders, local), (view.names, {})):
        edges = graph(view, set(among))
        found = [tree for root in among if (tree := fastest_tree(edges, root)) is not None]
        whole = [Tree(t.root, {**below, **t.reduce}, {**below, **t.broadcast}) for t in found]
        linked = [tree for tree in whole if all(_is_edge(view, *pair) for pair in tree.reduce.items())]
        if (best := best_tree(view, linked)) is not None:
            return best
    raise PolicyError("cpn: the view has no edges that connect all members")


def _is_edge(view: View, child: str, parent: str) -> bool:
    return (child, parent) in view.edges and (parent, child) in view.edges


def _rings(plan: Plan) -> list[tuple[str, ...]]:
    """Return the members of each group in the order of its ring. A plan's own members have the view's order."""
    if plan.groups:
        return [group.members for group in plan.groups]
    onward = {parent: child for child, parent in plan.trees[0].broadcast.items()}
    ring = [plan.trees[0].root]
    while ring[-1] in onward:
        ring.append(onward[ring[-1]])
    return [tuple(ring) if len(ring) == len(plan.members) else plan.members]
