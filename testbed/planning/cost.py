"""The predicted time of a round under a plan: how every policy, and every swap, is judged.

Chunks are pipelined, so a round lasts as long as its busiest capacity needs to drain, and a little more while the
first chunk fills the pipe (a tandem queue: n chunks through hops of times t_1..t_h take Σt + (n − 1)·max t):

    seconds = max over links l of  8·bytes_l / goodput_l
            + max over trees, ways up and ways down of   fill(up) + fill(down) − the slowest hop's chunk time
    fill(way) = Σ over its edges of  (one-way delay + 8·chunk / goodput of the edge alone)

bytes_l   is Σ over trees of share · model bytes · uses of l by the reduce and the broadcast edges, since every
          edge carries its tree's slice once. The two directions overlap: a chunk returns while later ones go up.
goodput   is the rate × 1448/1514: plans count payload, links count frames.
delay     counts once per edge, queues empty; TCP's slow start and the hosts' own work are not in the model.
chunk     is the smaller of the plan's chunk and the slice. The slowest hop's chunk time is taken off because the
          drain already holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.plan import Plan, Tree
from testbed.planning.constraints import Constraints
from testbed.planning.view import View


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted seconds of a round: `drain_s` of the `bottleneck` plus `fill_s` of the pipe.

    Infinite when the plan uses an edge that the view lacks; `bottleneck` then names that edge.
    """

    drain_s: float
    fill_s: float
    bottleneck: str

    @property
    def seconds(self) -> float:
        return self.drain_s + self.fill_s


@dataclass(frozen=True, slots=True)
class _Fill:
    """A way to or from the root: its time for a first chunk, and the chunk time of its slowest edge."""

    seconds: float
    slowest_s: float


class CostModel:
    """Predicts rounds under one view; made once, asked for many plans."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._limits = Constraints.of(view)

    def predict(self, plan: Plan) -> Cost:
        """The cost of a round under `plan`. O(trees · members · route length)."""
        for source, target, _ in plan.edges():
            if (source, target) not in self._limits.drawn:
                return Cost(float("inf"), 0.0, f"{source}=>{target}")
        drains = self.drains(plan)
        bottleneck = max(drains, key=lambda name: drains[name], default="")
        fill = max(self._fill(tree, plan.chunk_bytes) for tree in plan.trees)
        return Cost(drains.get(bottleneck, 0.0), fill, bottleneck)

    def drains(self, plan: Plan) -> dict[str, float]:
        """Seconds that each capacity needs for what a round of `plan` puts on it."""
        return {name: 8 * load / self._limits.goodput_bps[name] for name, load in self.loads(plan).items()}

    def loads(self, plan: Plan) -> dict[str, float]:
        """Payload bytes of one round over each capacity that the plan uses."""
        loads: dict[str, float] = {}
        for source, target, tree in plan.edges():
            slice_bytes = plan.trees[tree].share * self._view.model_bytes
            for name in self._limits.drawn[source, target]:
                loads[name] = loads.get(name, 0.0) + slice_bytes
        return loads

    def _fill(self, tree: Tree, chunk_bytes: int) -> float:
        chunk = min(float(chunk_bytes), tree.share * self._view.model_bytes)
        return max(
            up.seconds + down.seconds - max(up.slowest_s, down.slowest_s)
            for up in self._ways(tree.reduce, chunk, towards_root=True)
            for down in self._ways(tree.broadcast, chunk, towards_root=False)
        )

    def _ways(self, parents: Mapping[str, str], chunk: float, towards_root: bool) -> list[_Fill]:
        """The ways to (from) the root that may fill last: none of the others is longer with as fast a slowest edge."""
        ways = [_Fill(0.0, 0.0)]
        for member in parents:
            seconds = slowest = 0.0
            while member in parents:
                parent = parents[member]
                edge = (member, parent) if towards_root else (parent, member)
                limit = min((self._limits.goodput_bps[name] for name in self._limits.drawn[edge]), default=float("inf"))
                seconds += self._view.edge_delay(*edge) + 8 * chunk / limit
                slowest = max(slowest, 8 * chunk / limit)
                member = parent
            ways.append(_Fill(seconds, slowest))
        last: list[_Fill] = []
        for way in sorted(ways, key=lambda way: (-way.seconds, way.slowest_s)):
            if not last or way.slowest_s < last[-1].slowest_s:
                last.append(way)
        return last


def predict(plan: Plan, view: View) -> Cost:
    """The cost of a round of `plan` under `view`."""
    return CostModel(view).predict(plan)
