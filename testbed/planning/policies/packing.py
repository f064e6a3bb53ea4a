"""Packing: the model shared over few and shallow trees that load the network evenly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from testbed.plan import Plan, Tree
from testbed.planning.constraints import Constraints
from testbed.planning.overlay import DirectedTree, Overlay
from testbed.planning.pack import PackingError, pack
from testbed.planning.policy import Policy, PolicyError, check_choice, check_number, register
from testbed.planning.simulate import affordable, tried_s
from testbed.planning.tree_choice import FEWER, TreeChoice
from testbed.planning.view import View

PackingKnowledge = Literal["oracle", "measured"]

#: The rate comes within this part of the optimum before trees are chosen.
TOLERANCE = 0.005


@register("packing")
@dataclass(frozen=True)
class Packing(Policy):
    """Trees that together carry the highest rate, few and shallow ones among them [ours].

    `pack` finds the greatest rate R at which trees can all-reduce, `tree_choice` few and shallow trees with the least
    predicted time: M/R plus the longest path up and down, a chunk at a time. O(rounds · n²) for the rate, at most 300
    rounds; then O(n² log n) for each of some 50 shallow trees. On networks of up to 16 members the best choices are
    tried by simulation.
    """

    #: `oracle`: edges share physical links as the view's routes say. `measured`: each edge has its own rate.
    knowledge: PackingKnowledge = "oracle"
    #: The most that each member sends, in bit/s, if its links carry more.
    egress_bps: float | None = None
    #: The most that each member receives, in bit/s, if its links carry more.
    ingress_bps: float | None = None

    def __post_init__(self) -> None:
        check_choice(self, "knowledge", self.knowledge, get_args(PackingKnowledge))
        for name, rate in (("egress_bps", self.egress_bps), ("ingress_bps", self.ingress_bps)):
            if rate is not None:
                check_number(self, name, rate, above=True)

    def plan(self, view: View) -> Plan:
        """Return the plan of the trees that together carry the highest rate."""
        return self._packed(view, None)

    def replan(self, view: View, last: Plan) -> Plan:
        """Return the plan for `view`; the search begins with the trees of plan `last`."""
        return self._packed(view, last)

    def _packed(self, view: View, last: Plan | None) -> Plan:
        if len(view.members) == 1:
            return self._plan(view, [Tree(view.names[0], {}, {})])
        seen = view if self.knowledge == "oracle" else replace(view, links={}, routes={})
        limits = Constraints.of(seen).with_members(self.egress_bps, self.ingress_bps)
        overlay = Overlay(view.names, limits)
        try:
            packed = pack(overlay, TOLERANCE, _reusable(overlay, last))
            good = TreeChoice(seen, limits, packed).good()
        except PackingError as error:
            raise PolicyError(f"packing: {error}") from error
        plans = [self._plan(seen, trees) for trees in (good if affordable(view) else good[:1])]
        if len(plans) == 1:
            return plans[0]
        seconds = [tried_s(plan, seen) for plan in plans]
        return next(plan for plan, its in zip(plans, seconds, strict=True) if its <= min(seconds) * (1 + FEWER))


def _reusable(overlay: Overlay, last: Plan | None) -> list[DirectedTree]:
    """Return the trees of a plan whose edges the overlay still has."""
    if last is None or last.members != overlay.members:
        return []
    number = {member: i for i, member in enumerate(overlay.members)}
    return overlay.present_trees(
        (number[tree.root], outward, [number[of.get(member, member)] for member in overlay.members])
        for tree in last.trees
        for outward, of in ((False, tree.reduce), (True, tree.broadcast))
    )
