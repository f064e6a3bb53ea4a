"""Minimum-cost arborescences (Chu and Liu 1965, Edmonds 1967) of all roots at once, on dense cost matrices.

Edmonds' contraction does not depend on the root when it goes on until a single node is left: then opening that node
again gives the tree of any root in O(n) (Camerini, Fratta and Maffioli 1979), and the cost of every root's tree
follows from the contraction alone. So pricing trees for n roots costs one contraction of O(n²), not n of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


class Arborescences:
    """The cheapest tree out of each node over all nodes.

    `costs[u, v]` is the cost of the edge u→v, at least 0; infinite where there is none. `totals[r]` is the cost of
    the cheapest tree out of r, infinite when r does not reach every node. Trees into a root are those out of it
    under `costs.T`.

    Growing a path backward: its head, a node or a contracted cycle, takes its cheapest edge in, by whose cost all
    its edges in become cheaper; when that edge comes from the path itself, the cycle becomes one node. Each step is
    a few vector operations over n, and there are less than 2n steps.
    """

    def __init__(self, costs: Costs) -> None:
        self._n = len(costs)
        present = costs[np.isfinite(costs)]
        scale = float(present.max(initial=0.0)) or 1.0
        # An edge that is not there costs more than any tree, so every graph contracts to one node.
        absent = 2.0 * self._n * scale
        self._entry: list[int] = [-1] * self._n  # of each node, by which edge its parent's cycle took it
        self._owner: list[int] = [-1] * self._n  # the contracted node that holds it
        self._inside: list[list[int]] = [[] for _ in range(self._n)]
        reductions = self._contract(np.where(np.isfinite(costs), costs, absent))
        self.totals = self._root_costs(reductions)
        self.totals[self.totals >= absent / 2] = np.inf

    def parents(self, root: int) -> list[int]:
        """The parent of each node in the cheapest tree out of `root`; the root's own is itself. O(n)."""
        parents = [root] * self._n
        open_: list[int] = []
        self._open(root, len(self._owner) - 1, open_)
        while open_:
            node = open_.pop()
            source, target = divmod(self._entry[node], self._n)
            parents[target] = source
            self._open(target, node, open_)
        return parents

    def _open(self, leaf: int, node: int, open_: list[int]) -> None:
        """Open `node` down to `leaf`: its cycles are entered there, so all else in them keeps its edge in."""
        while leaf != node:
            owner = self._owner[leaf]
            open_ += (other for other in self._inside[owner] if other != leaf)
            leaf = owner

    def _contract(self, costs: Costs) -> list[float]:
        """Contract all to one node; by how much each node's edges in were made cheaper. Fills the hierarchy."""
        n = self._n
        into = np.ascontiguousarray(costs.T)  # into[v, u]: what is left of the cost of u→v
        np.fill_diagonal(into, np.inf)
        edges = np.arange(n * n).reshape(n, n).T.copy()  # the edge behind into[v, u], as source · n + target
        reductions = [0.0] * n
        node = list(range(n))  # what each row stands for by now
        path, place = [0], {0: 0}
        while len(path) > 1 or np.isfinite(into[path[0]]).any():
            head = path[-1]
            source = int(into[head].argmin())
            reductions[node[head]] = float(into[head, source])
            self._entry[node[head]] = int(edges[head, source])
            into[head] -= into[head, source]
            if source not in place:
                place[source] = len(path)
                path.append(source)
                continue
            cycle = path[place[source] :]
            _merge(into, edges, cycle)
            for row in cycle[1:]:
                del place[row]
            del path[place[source] + 1 :]
            self._inside.append([node[row] for row in cycle])
            for row in cycle:
                self._owner[node[row]] = len(self._owner)
            self._owner.append(-1)
            self._entry.append(-1)
            reductions.append(0.0)
            node[source] = len(self._owner) - 1
        return reductions

    def _root_costs(self, reductions: list[float]) -> Costs:
        """A root's tree costs the reductions of all nodes but those that hold it (the dual of Edmonds' program)."""
        above = [0.0] * len(reductions)
        for node in range(len(reductions) - 2, -1, -1):  # holders come after what they hold
            above[node] = above[self._owner[node]] + reductions[node]
        return sum(reductions) - np.array(above[: self._n])


def _merge(into: Costs, edges: NDArray[np.int64], cycle: list[int]) -> None:
    """Make the rows of a cycle one, the first: of parallel edges the cheapest stays."""
    rows = np.array(cycle)
    everything = np.arange(len(into))
    best = into[rows].argmin(axis=0)
    entering, entering_edges = into[rows[best], everything], edges[rows[best], everything]
    best = into[:, rows].argmin(axis=1)
    leaving, leaving_edges = into[everything, rows[best]], edges[everything, rows[best]]
    into[rows] = np.inf
    into[:, rows] = np.inf
    entering[rows] = leaving[rows] = np.inf
    into[cycle[0]], edges[cycle[0]] = entering, entering_edges
    into[:, cycle[0]], edges[:, cycle[0]] = leaving, leaving_edges
