"""The overlay as arrays, for tree packing, and its cheapest trees: members, edges and capacities are numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.planning.constraints import Constraints, Floats, Ints
from testbed.planning.events import load, starts


@dataclass(frozen=True, slots=True)
class DirectedTree:
    """A spanning tree in one direction, and its use of capacities."""

    root: int
    #: True where the mean goes from the root along the tree; False where partial sums go to the root.
    outward: bool
    #: Each member's parent; the root is its own.
    parents: tuple[int, ...]
    #: The capacities that the tree's edges draw on, and how many of its edges draw on each.
    names: Ints
    uses: Floats


class Overlay:
    """Members 0..n−1, the edges among them, and the capacities that these draw on.

    `goodput` counts in units of `unit_bps`, the least capacity. The solver keeps limits to 1e-7 of a unit, which would
    be too coarse for a slow link if the unit were the median, perhaps a LAN's rate.
    """

    def __init__(self, members: Sequence[str], limits: Constraints) -> None:
        index = {member: i for i, member in enumerate(members)}
        names = sorted({name for drawn in limits.drawn.values() for name in drawn})
        number = {name: i for i, name in enumerate(names)}
        goodput = np.array([limits.goodput_bps[name] for name in names])
        self.members = tuple(members)
        self.unit_bps = float(goodput.min(initial=np.inf))
        self.goodput: Floats = goodput / self.unit_bps
        self._source = np.array([index[source] for source, _ in limits.drawn], dtype=np.int64)
        self._target = np.array([index[target] for _, target in limits.drawn], dtype=np.int64)
        routes = [[number[name] for name in drawn] for drawn in limits.drawn.values()]
        self._start = starts(routes)
        self._drawn = np.array([name for route in routes for name in route], dtype=np.int64)
        self._edge_of_draw = np.repeat(np.arange(len(routes)), np.diff(self._start))
        self._edge = np.full((len(members), len(members)), -1, dtype=np.int64)
        self._edge[self._source, self._target] = np.arange(len(routes))

    def costs(self, prices: Floats) -> Floats:
        """Return the edges' costs (n, n: [source, target]) if capacities cost `prices`; infinite without an edge."""
        per_edge = np.bincount(self._edge_of_draw, weights=prices[self._drawn], minlength=len(self._source))
        costs = np.full((len(self.members), len(self.members)), np.inf)
        costs[self._source, self._target] = per_edge
        return costs

    def directed_tree(self, root: int, outward: bool, parents: Sequence[int]) -> DirectedTree:
        """Return the tree of these parents, whose edges must all be in the overlay."""
        edges = self._edges(root, outward, parents)
        uses = np.bincount(self._draws(edges))
        names = np.flatnonzero(uses)
        return DirectedTree(root, outward, tuple(parents), names, uses[names].astype(np.float64))

    def present_trees(self, trees: Iterable[tuple[int, bool, Sequence[int]]]) -> list[DirectedTree]:
        """Return those of the trees (root, outward, parents) whose edges are all in the overlay."""
        return [self.directed_tree(*tree) for tree in trees if (self._edges(*tree) >= 0).all()]

    def _edges(self, root: int, outward: bool, parents: Sequence[int]) -> Ints:
        child = np.array([v for v in range(len(parents)) if v != root], dtype=np.int64)
        parent = np.array(parents, dtype=np.int64)[child]
        edges: Ints = self._edge[parent, child] if outward else self._edge[child, parent]
        return edges

    def _draws(self, edges: Ints) -> Ints:
        """Return the capacities that these edges draw on, edge after edge."""
        lengths = self._start[edges + 1] - self._start[edges]
        first = np.repeat(self._start[edges] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
        draws: Ints = self._drawn[first + np.arange(lengths.sum())]
        return draws


class Arborescences:
    """The cheapest spanning tree out of each node (minimum-cost arborescences; Chu and Liu 1965, Edmonds 1967).

    Trees into a root are those out of it under `costs.T`. Edmonds' contraction does not depend on the root if it
    continues until a single node is left. Expanding that node gives the tree of any root in O(n) (Camerini, Fratta and
    Maffioli 1979), and the contraction alone gives the cost of every root's tree. So the trees of n roots are priced by
    one contraction of O(n²), not by n of them. The contraction is in C (`arborescence.c`), because packing needs
    hundreds, of a dozen nodes each.

    Args:
        costs: The cost of the edge u→v at [u, v], shape (n, n), at least 0; infinite where there is no edge.

    Attributes:
        totals: The cost of the cheapest tree out of each node, shape (n,); infinite for a node that does not reach
            all others.
    """

    def __init__(self, costs: Floats) -> None:
        self._n = len(costs)
        present = np.isfinite(costs)
        scale = float(costs[present].max(initial=0.0)) or 1.0
        # A missing edge costs more than any tree, so that every graph contracts to one node.
        absent = 2.0 * self._n * scale
        finite = np.ascontiguousarray(np.where(present, costs, absent))
        self._hierarchy = np.empty(8 * self._n, dtype=np.int64)  # `struct hierarchy`
        self.totals = np.empty(self._n)
        addresses = (array.ctypes.data for array in (finite, self._hierarchy, self.totals))
        if not load().contract(self._n, *addresses):
            raise MemoryError(f"out of memory while contracting {self._n} nodes")
        self.totals[self.totals >= absent / 2] = np.inf

    def parents(self, root: int) -> list[int]:
        """Return each node's parent in the cheapest tree out of `root`; the root is its own parent. O(n)."""
        parents = np.empty(self._n, dtype=np.int64)
        if not load().parents(self._n, self._hierarchy.ctypes.data, root, parents.ctypes.data):
            raise MemoryError(f"out of memory while expanding a tree of {self._n} nodes")
        return parents.tolist()
