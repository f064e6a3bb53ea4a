"""The predicted time of a round under a plan: how every policy, and every swap, is judged.

Chunks are pipelined, so a round lasts as long as its busiest capacity needs to drain, and a little more while the
first chunk fills the pipe (a tandem queue: n chunks through hops of times t_1..t_h take Σt + (n − 1)·max t):

    seconds = max(max over links l of  8·bytes_l / goodput_l,  max over trees of keyed)
            + max over trees, ways up and ways down of   fill(up) + fill(down) − the slowest hop's chunk time
    fill(way) = Σ over its edges of  (one-way delay + 8·chunk / goodput of the edge alone)

bytes_l   is Σ over trees of share · model bytes · uses of l by the reduce and the broadcast edges, since every
          edge carries its tree's slice once. The two directions overlap: a chunk returns while later ones go up.
goodput   is the rate × 1448/1514: plans count payload, links count frames.
delay     counts once per edge, queues empty; TCP's slow start and the hosts' own work are not in the model.
keyed     is for a tree whose keys k_1..k_m are broadcast as a whole: two stages, the second of a key after its
          first, so max over i of  (k_1 + … + k_i)·push + (k_i + … + k_m)·pull, where push and pull are what the
          busiest link needs for all partial sums, and for all means.
chunk     is the smaller of the plan's chunk and the slice. The slowest hop's chunk time is taken off because the
          drain already holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from testbed.plan import Plan, Tree
from testbed.planning.constraints import Constraints
from testbed.planning.view import Pair, View


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


class _Fill(NamedTuple):
    """A path to or from the root: its time for a first chunk, and the chunk time of its slowest edge."""

    seconds: float
    slowest_s: float


class CostModel:
    """Predicts rounds under one view; made once, asked for many plans."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._limits = Constraints.of(view)
        # Plans share edges, and each is asked for with several sizes of chunks.
        self._alone: dict[Pair, tuple[float, float]] = {}

    def predict(self, plan: Plan) -> Cost:
        """The cost of a round under `plan`. O(trees · members · route length)."""
        for source, target, _ in plan.edges():
            if (source, target) not in self._limits.drawn:
                return Cost(float("inf"), 0.0, f"{source}=>{target}")
        drains = self.drains(plan)
        bottleneck = max(drains, key=lambda name: drains[name], default="")
        fill = max(self._fill(tree, plan.chunk_bytes) for tree in plan.trees)
        return Cost(max(drains.get(bottleneck, 0.0), self._keyed(plan)), fill, bottleneck)

    def _keyed(self, plan: Plan) -> float:
        """Seconds that the keys need to go up and then down; 0 when there are none."""
        if not any(tree.keys for tree in plan.trees):
            return 0.0
        push, pull = (self._way_drain(plan, towards_root) for towards_root in (True, False))
        seconds = 0.0
        for tree in plan.trees:
            before = 0.0
            for key in tree.keys:
                seconds = max(seconds, (before + key) * push + (1 - before) * pull)
                before += key
        return seconds

    def _way_drain(self, plan: Plan, towards_root: bool) -> float:
        """Seconds that the busiest capacity needs for all partial sums, or for all means."""
        loads: dict[str, float] = {}
        for tree in plan.trees:
            for child, parent in (tree.reduce if towards_root else tree.broadcast).items():
                for name in self._limits.drawn[(child, parent) if towards_root else (parent, child)]:
                    loads[name] = loads.get(name, 0.0) + tree.share * self._view.model_bytes
        return max((8 * load / self._limits.goodput_bps[name] for name, load in loads.items()), default=0.0)

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
        downs = self._ways(tree.broadcast, chunk, towards_root=False)
        return max(
            up.seconds + down.seconds - max(up.slowest_s, down.slowest_s)
            for up in self._ways(tree.reduce, chunk, towards_root=True)
            for down in downs
        )

    def _ways(self, parents: Mapping[str, str], chunk: float, towards_root: bool) -> list[_Fill]:
        """The paths to (from) the root that may fill last: none of the others is longer with as fast a slowest edge."""
        ways: dict[str, _Fill] = {}
        for member in parents:
            unknown = []
            while member in parents and member not in ways:
                unknown.append(member)
                member = parents[member]
            for child in reversed(unknown):
                beyond = ways.get(parents[child], _Fill(0.0, 0.0))
                edge = (child, parents[child]) if towards_root else (parents[child], child)
                delay_s, goodput_bps = self._of_edge(edge)
                chunk_s = 8 * chunk / goodput_bps
                ways[child] = _Fill(beyond.seconds + delay_s + chunk_s, max(beyond.slowest_s, chunk_s))
        last: list[_Fill] = []
        for way in sorted(ways.values(), key=lambda way: (-way.seconds, way.slowest_s)):
            if not last or way.slowest_s < last[-1].slowest_s:
                last.append(way)
        return last or [_Fill(0.0, 0.0)]

    def _of_edge(self, edge: Pair) -> tuple[float, float]:
        """An edge's one-way delay, and the bit/s that it carries when nothing else is sent."""
        known = self._alone.get(edge)
        if known is None:
            capacities = (self._limits.goodput_bps[name] for name in self._limits.drawn[edge])
            known = self._alone[edge] = self._view.edge_delay(*edge), min(capacities, default=float("inf"))
        return known


def predict(plan: Plan, view: View) -> Cost:
    """The cost of a round of `plan` under `view`."""
    return CostModel(view).predict(plan)
