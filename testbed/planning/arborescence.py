"""Minimum-cost arborescences (Chu and Liu 1965, Edmonds 1967) on dense cost matrices.

NetworkX has them too; this one, made for a few dozen nodes and called thousands of times by the bound, takes a
tenth of the time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


def arborescence(costs: Costs, root: int) -> list[int] | None:
    """The parents of the cheapest tree out of `root` over all nodes; the root's own is itself.

    `costs[u, v]` is the cost of the edge u→v, at least 0; infinite where there is none. None when some node can't
    be reached. O(n³): each node takes its cheapest edge in; a cycle of such edges becomes one node, into which an
    edge costs what it adds to the cycle's own; the tree over what is left says where the cycle is entered.
    """
    costs = costs.copy()
    np.fill_diagonal(costs, np.inf)
    costs[:, root] = np.inf
    parents = np.argmin(costs, axis=0)
    parents[root] = root
    cheapest = costs[parents, np.arange(len(costs))]
    cheapest[root] = 0.0
    if np.isinf(cheapest).any():
        return None
    cycle = _cycle(parents.tolist(), root)
    if not cycle:
        return [int(parent) for parent in parents]
    return _expand(costs, cheapest, parents.tolist(), cycle, root)


def _cycle(parents: list[int], root: int) -> list[int]:
    """The nodes of a cycle that the parents make; none when all lead to the root."""
    walk = [-1] * len(parents)  # by which walk a node was first met
    walk[root] = root
    for start in range(len(parents)):
        node = start
        while walk[node] == -1:
            walk[node] = start
            node = parents[node]
        if walk[node] == start and node != root:
            cycle = [node]
            while (node := parents[node]) != cycle[0]:
                cycle.append(node)
            return cycle
    return []


def _expand(costs: Costs, cheapest: Costs, parents: list[int], cycle: list[int], root: int) -> list[int] | None:
    """Solve with `cycle` as one node, the last; then open it where the solution enters it."""
    inside = set(cycle)
    rest = [node for node in range(len(costs)) if node not in inside]
    entering = costs[np.ix_(rest, cycle)] - cheapest[cycle]
    leaving = costs[np.ix_(cycle, rest)]
    smaller = np.full((len(rest) + 1, len(rest) + 1), np.inf)
    smaller[:-1, :-1] = costs[np.ix_(rest, rest)]
    smaller[:-1, -1] = entering.min(axis=1)
    smaller[-1, :-1] = leaving.min(axis=0)
    solved = arborescence(smaller, rest.index(root))
    if solved is None:
        return None
    exits = [cycle[i] for i in leaving.argmin(axis=0)]
    for i, node in enumerate(rest):
        parents[node] = exits[i] if solved[i] == len(rest) else rest[solved[i]]
    parents[root] = root
    into = solved[-1]
    parents[cycle[int(entering[into].argmin())]] = rest[into]
    return parents
