"""The cost model: the predicted time of a round under a plan, by which every policy and every swap is judged.

Chunks are pipelined. A round therefore lasts as long as its busiest capacity needs to drain, plus the time in which
the first chunk fills the pipe. (In a tandem queue n chunks through hops of times t_1..t_h take Σt + (n − 1)·max t.)

    seconds = max(max over links l of  8·bytes_l / goodput_l,  max over trees of keyed)
            + max over trees, ways up and ways down of   fill(up) + fill(down) − the slowest hop's chunk time
    fill(way) = Σ over its edges of  (one-way delay + 8·chunk / goodput of the edge alone)

bytes_l   Σ over trees of share · model bytes · uses of l by the reduce and the broadcast edges: each edge carries
          its tree's slice once. The two directions overlap: a chunk returns while later ones go up.
goodput   the rate × 1448/1514: plans count payload, links count frames.
delay     counted once per edge, queues empty; TCP's slow start and the hosts' own work are not in the model.
keyed     for a tree whose keys k_1..k_m are broadcast as wholes. A key is pulled after its push, so the time is the
          max over i of  (k_1 + … + k_i)·push + (k_i + … + k_m)·pull, where push and pull are the seconds of the
          busiest link for all partial sums, and for all means.
chunk     the smaller of the plan's chunk and the slice. The slowest hop's chunk time is subtracted because the
          drain already contains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.plan import Plan, Tree
from testbed.planning.constraints import Constraints
from testbed.planning.view import Pair, View

#: Chunk sizes in bytes that a plan may have, the largest first. A deep pipe fills chunk by chunk, so small chunks
#: shorten a round; each chunk costs a header and a turn of the members' threads, so large chunks spare the hosts.
SIZES = (256 * 1024, 128 * 1024, 64 * 1024, 32 * 1024, 16 * 1024)

#: The part of a round that the chunks' own transmission may add. Optimal packing of 10.9 MB over nine sites: 31 % at
#: 256 KiB, 9 % at 64 KiB, 5 % at 32 KiB.
TOLERATED = 0.03


@dataclass(frozen=True, slots=True)
class Cost:
    """The predicted time of a round."""

    #: Seconds that the busiest capacity needs for its bytes; infinite if the plan uses an edge that the view lacks.
    drain_s: float
    #: Seconds until the first chunk has gone through the pipe.
    fill_s: float
    #: The name of the busiest capacity, or of the missing edge as `u=>v`.
    bottleneck: str

    @property
    def seconds(self) -> float:
        """The whole round in seconds."""
        return self.drain_s + self.fill_s


class _Fill(NamedTuple):
    """The times of a first chunk along a path to or from the root: of the whole path, and of its slowest edge."""

    seconds: float
    slowest_s: float


class _Step(NamedTuple):
    """An edge between a member and its parent in a tree."""

    #: The index of the parent's own step among a tree's steps; -1 for the root, which has none.
    parent: int
    #: The one-way delay, and the seconds that a byte takes while nothing else is sent.
    delay_s: float
    byte_s: float


#: An edge that a tree uses: the sender, the receiver, and the tree's index in its plan.
IndexedEdge = tuple[str, str, int]

#: The steps of a tree in one direction, a parent's before those of its children.
_Steps = list[_Step]


class CostModel:
    """Predicts rounds under one view. One model serves many plans: it remembers the edges' costs."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._limits = Constraints.of(view)
        # Plans share edges, and each tree is needed with several chunk sizes. Trees are known by identity, since a
        # tree's hash costs as much as its steps.
        self._alone: dict[Pair, tuple[float, float]] = {}
        self._steps: dict[int, tuple[Tree, _Steps, _Steps]] = {}

    def predict(self, plan: Plan) -> Cost:
        """Return the cost of a round under `plan`. O(trees · members · route length)."""
        for source, target, _ in plan.edges():
            if (source, target) not in self._limits.drawn:
                return Cost(float("inf"), 0.0, f"{source}=>{target}")
        drains = self.drains(plan)
        bottleneck = max(drains, key=lambda name: drains[name], default="")
        fill_s = self.fill_s(plan.trees, plan.chunk_bytes)
        return Cost(max(drains.get(bottleneck, 0.0), self._keyed(plan)), fill_s, bottleneck)

    def _keyed(self, plan: Plan) -> float:
        """Return the seconds in which the keys go up and then down (`keyed` above); 0 for a plan without keys."""
        if not any(tree.keys for tree in plan.trees):
            return 0.0
        ups = ((child, parent, i) for i, tree in enumerate(plan.trees) for child, parent in tree.reduce.items())
        downs = ((parent, child, i) for i, tree in enumerate(plan.trees) for child, parent in tree.broadcast.items())
        push, pull = (max(self.drains(plan, way).values(), default=0.0) for way in (ups, downs))
        seconds = 0.0
        for tree in plan.trees:
            before = 0.0
            for key in tree.keys:
                seconds = max(seconds, (before + key) * push + (1 - before) * pull)
                before += key
        return seconds

    def drains(self, plan: Plan, edges: Iterable[IndexedEdge] | None = None) -> dict[str, float]:
        """Return the seconds that each capacity needs for its bytes of a round: see `loads`."""
        return {name: 8 * load / self._limits.goodput_bps[name] for name, load in self.loads(plan, edges).items()}

    def loads(self, plan: Plan, edges: Iterable[IndexedEdge] | None = None) -> dict[str, float]:
        """Return the payload bytes of a round over each capacity that `edges` of `plan` use, by default all edges."""
        loads: dict[str, float] = {}
        for source, target, tree in plan.edges() if edges is None else edges:
            slice_bytes = plan.trees[tree].share * self._view.model_bytes
            for name in self._limits.drawn[source, target]:
                loads[name] = loads.get(name, 0.0) + slice_bytes
        return loads

    def fill_s(self, trees: Iterable[Tree], chunk_bytes: int) -> float:
        """Return the seconds until the first chunk has gone through the pipe of `trees`, whose edges the view has."""
        return max(self._fill(tree, chunk_bytes) for tree in trees)

    def _fill(self, tree: Tree, chunk_bytes: int) -> float:
        if id(tree) not in self._steps:
            ups, downs = self._make_steps(tree.reduce, True), self._make_steps(tree.broadcast, False)
            self._steps[id(tree)] = tree, ups, downs
        _, ups, downs = self._steps[id(tree)]
        chunk = min(float(chunk_bytes), tree.share * self._view.model_bytes)
        last_downs = _last(downs, chunk)
        return max(
            up.seconds + down.seconds - max(up.slowest_s, down.slowest_s)
            for up in _last(ups, chunk)
            for down in last_downs
        )

    def _make_steps(self, parents: Mapping[str, str], towards_root: bool) -> _Steps:
        number: dict[str, int] = {}
        steps: _Steps = []
        for member in parents:
            unknown = []
            while member in parents and member not in number:
                unknown.append(member)
                member = parents[member]
            for child in reversed(unknown):
                parent = parents[child]
                delay_s, goodput_bps = self._edge_alone((child, parent) if towards_root else (parent, child))
                number[child] = len(steps)
                steps.append(_Step(number.get(parent, -1), delay_s, 8 / goodput_bps))
        return steps

    def _edge_alone(self, edge: Pair) -> tuple[float, float]:
        """Return an edge's one-way delay, and the payload in bit/s that it carries while nothing else is sent."""
        known = self._alone.get(edge)
        if known is None:
            capacities = (self._limits.goodput_bps[name] for name in self._limits.drawn[edge])
            known = self._alone[edge] = self._view.edge_delay(*edge), min(capacities, default=float("inf"))
        return known


def _last(steps: _Steps, chunk: float) -> list[_Fill]:
    """Return the paths along `steps` that may be the last to be filled by a chunk of `chunk` bytes.

    A path is left out if another one takes longer, and its slowest edge is as fast or faster.
    """
    seconds, slowest_s = [0.0] * (len(steps) + 1), [0.0] * (len(steps) + 1)  # the last ones are of the root
    for i, (parent, delay_s, byte_s) in enumerate(steps):
        chunk_s = chunk * byte_s
        seconds[i] = seconds[parent] + delay_s + chunk_s
        slowest_s[i] = max(slowest_s[parent], chunk_s)
    last: list[_Fill] = []
    for path_s, its_slowest_s in sorted(zip(seconds, slowest_s, strict=True), key=lambda path: (-path[0], path[1])):
        if not last or its_slowest_s < last[-1].slowest_s:
            last.append(_Fill(path_s, its_slowest_s))
    return last


def predict(plan: Plan, view: View) -> Cost:
    """Return the predicted cost of one round of `plan` under `view`."""
    return CostModel(view).predict(plan)


def best_tree(view: View, trees: Iterable[Tree]) -> Tree | None:
    """Return the tree with the shortest predicted round; None if the view lacks edges of every tree."""
    model = CostModel(view)
    predicted = [(model.predict(Plan(0, view.names, (tree,))).seconds, tree) for tree in trees]
    seconds, best = min(predicted, key=lambda one: one[0], default=(float("inf"), None))
    return best if seconds < float("inf") else None


def choose_chunk(view: View, trees: Sequence[Tree]) -> int:
    """Return the largest of SIZES that adds at most TOLERATED to a round with vanishing chunks, else the smallest.

    The view has all edges of the trees.
    """
    model = CostModel(view)
    ideal = model.predict(Plan(0, view.names, tuple(trees), chunk_bytes=1024))
    longest_s = ideal.seconds * (1 + TOLERATED) - ideal.drain_s
    return next((size for size in SIZES if model.fill_s(trees, size) <= longest_s), SIZES[-1])
