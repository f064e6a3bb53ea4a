"""Packing: the model shared over trees that load the network evenly, few and shallow ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from testbed.plan import Plan, Tree
from testbed.planning.choice import FEWER, Choice
from testbed.planning.constraints import Constraints
from testbed.planning.overlay import DirectedTree, Overlay
from testbed.planning.pack import pack
from testbed.planning.policy import Policy, PolicyError, register
from testbed.planning.program import PackingError
from testbed.planning.trial import affordable, tried_s
from testbed.planning.view import View

Sees = Literal["oracle", "measured"]

#: How near to the optimum the rate is brought before trees are chosen.
TOLERANCE = 0.005


@register("packing")
@dataclass(frozen=True)
class Packing(Policy):
    """Tree packing (our design): `pack` finds the rate R at which any set of trees can all-reduce, `choice` few and
    shallow trees with the least predicted time, M/R + the longest way up and down, a chunk at a time.

    `knowledge`: `oracle` shares physical links as the view's routes say; `measured` takes each edge's rate as its own.
    `egress_bps`, `ingress_bps`: what each member may send and receive at most, if that is less than its links carry.
    O(rounds · n²) for the rate, at most 300 rounds; then O(n² log n) for each of some 50 shallow trees. On networks of
    up to 16 members the best few choices are tried.
    """

    knowledge: Sees = "oracle"
    egress_bps: float | None = None
    ingress_bps: float | None = None

    def __post_init__(self) -> None:
        if self.knowledge not in get_args(Sees):
            raise PolicyError(
                f"packing: knowledge {self.knowledge!r} is none of {', '.join(get_args(Sees))}",
                field="knowledge",
                given=self.knowledge,
            )
        for name, rate in (("egress_bps", self.egress_bps), ("ingress_bps", self.ingress_bps)):
            if rate is not None and not rate > 0:
                raise PolicyError(f"packing: {name} {rate} must be positive", field=name, given=rate)

    def plan(self, view: View) -> Plan:
        return self._packed(view, None)

    def replan(self, view: View, last: Plan) -> Plan:
        """As `plan`, its search begun with the trees of the plan in force."""
        return self._packed(view, last)

    def _packed(self, view: View, last: Plan | None) -> Plan:
        if len(view.members) == 1:
            return self._plan(view, [Tree(view.names[0], {}, {})])
        seen = view if self.knowledge == "oracle" else replace(view, links={}, routes={})
        limits = Constraints.of(seen).with_members(self.egress_bps, self.ingress_bps)
        overlay = Overlay(view.names, limits)
        try:
            packed = pack(overlay, TOLERANCE, _known(overlay, last))
            choice = _affordable(view, Choice(seen, limits, packed))
        except PackingError as error:
            raise PolicyError(f"packing: {error}") from error
        return self._tried(seen, [self._plan(seen, trees) for trees in choice])

    def _tried(self, view: View, plans: Sequence[Plan]) -> Plan:
        """The quickest of the plans when they are tried, of nearly equal ones the first."""
        if len(plans) == 1:
            return plans[0]
        seconds = [tried_s(plan, view) for plan in plans]
        return next(plan for plan, its in zip(plans, seconds, strict=True) if its <= min(seconds) * (1 + FEWER))


def _affordable(view: View, choice: Choice) -> list[list[Tree]]:
    """The trees worth a trial: those predicted to be the best alone where trials would take long."""
    good = choice.good()
    return good if affordable(view) else good[:1]


def _known(overlay: Overlay, last: Plan | None) -> list[DirectedTree]:
    """The trees of a plan that the overlay still has."""
    if last is None or last.members != overlay.members:
        return []
    number = {member: i for i, member in enumerate(overlay.members)}
    known = []
    for tree in last.trees:
        for outward, of in ((False, tree.reduce), (True, tree.broadcast)):
            parents = [number[of.get(member, member)] for member in overlay.members]
            if overlay.has(number[tree.root], outward, parents):
                known.append(overlay.directed_tree(number[tree.root], outward, parents))
    return known
