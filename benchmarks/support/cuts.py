"""The optimum of tree packing by another formulation, without trees: an upper bound from cuts.

By Edmonds' branching theorem trees out of r of total rate w pack into edge rates y exactly when every cut around
members without r lets in w. So the optimum is a linear program over edge rates y_r (broadcast) and z_r (reduce) of
each root, under all cuts; under some of them it is an upper bound. Cuts that a solution breaks are found by maximum
flows from the root to each member, and added.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

#: A cut that lacks less than this part of its root's rate does not count as broken.
BROKEN = 1e-6

MAX_ROUNDS = 100


def cut_rate(network: nx.DiGraph, enough: float) -> float:
    """Return a rate in bit/s that no set of trees exceeds.

    It is the optimum, unless a bound of `enough` or less is found before.
    """
    program = _Cuts(network)
    for site in network:
        program.add(frozenset((site,)))
        program.add(frozenset(network) - {site})
    for _ in range(MAX_ROUNDS):
        rate = program.solve()
        if rate <= enough or not program.add_broken():
            break
    return rate


class _Cuts:
    """Variables: for each root w, then y and z over the edges. Rows: a link's rate; w ≤ what crosses a cut."""

    def __init__(self, network: nx.DiGraph) -> None:
        self._sites = list(network)
        self._edges = list(network.edges)
        self._unit = float(np.median([link["rate"] for _, _, link in network.edges(data=True)]))
        self._limit = np.array([link["rate"] / self._unit for _, _, link in network.edges(data=True)])
        self._block = 1 + 2 * len(self._edges)
        self._known: set[tuple[int, bool, frozenset[str]]] = set()
        self._solution = np.zeros(len(self._sites) * self._block)
        self._values: list[float] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._height = len(self._edges)
        for root in range(len(self._sites)):
            for direction in (0, 1):
                for edge in range(len(self._edges)):
                    self._entry(edge, self._column(root, direction, edge), 1.0)

    def _column(self, root: int, direction: int, edge: int) -> int:
        return root * self._block + 1 + direction * len(self._edges) + edge

    def _entry(self, row: int, column: int, value: float) -> None:
        self._rows.append(row)
        self._columns.append(column)
        self._values.append(value)

    def add(self, cut: frozenset[str]) -> None:
        """Constrain each root outside the cut: a broadcast enters the cut at the root's rate, a reduction leaves it."""
        for root, site in enumerate(self._sites):
            if site not in cut:
                self._add(root, cut, reduce=False)
                self._add(root, cut, reduce=True)

    def _add(self, root: int, cut: frozenset[str], reduce: bool) -> bool:
        if not cut or (root, reduce, cut) in self._known:
            return False
        self._known.add((root, reduce, cut))
        self._entry(self._height, root * self._block, 1.0)
        for edge, (source, target) in enumerate(self._edges):
            if (source in cut) == reduce and (target in cut) != reduce:
                self._entry(self._height, self._column(root, int(reduce), edge), -1.0)
        self._height += 1
        return True

    def solve(self) -> float:
        """Return the rate under the known cuts, in bit/s."""
        width = len(self._sites) * self._block
        matrix = csr_array((self._values, (self._rows, self._columns)), shape=(self._height, width))
        gain = np.zeros(width)
        gain[:: self._block] = -1
        limit = np.concatenate([self._limit, np.zeros(self._height - len(self._edges))])
        solved = linprog(gain, A_ub=matrix, b_ub=limit, method="highs")
        if solved.status != 0:
            raise RuntimeError(f"the linear program of cuts was not solved: {solved.message}")
        self._solution = solved.x
        return -float(solved.fun) * self._unit

    def add_broken(self) -> bool:
        """Add the cuts that the last solution breaks, and return whether there were any."""
        found = False
        for root, site in enumerate(self._sites):
            rate = self._solution[root * self._block]
            for reduce in (False, True):
                first = self._column(root, int(reduce), 0)
                carried = self._solution[first : first + len(self._edges)]
                for cut in self._broken(site, rate, carried, reduce) if rate > BROKEN else ():
                    found |= self._add(root, cut, reduce)
        return found

    def _broken(self, root: str, rate: float, carried: np.ndarray, reduce: bool) -> list[frozenset[str]]:
        flows = nx.DiGraph()
        flows.add_nodes_from(self._sites)
        for (source, target), room in zip(self._edges, carried, strict=True):
            flows.add_edge(*((target, source) if reduce else (source, target)), capacity=float(room))
        cuts = []
        for site in self._sites:
            if site != root:
                room, (_, beyond) = nx.minimum_cut(flows, root, site)
                if room < rate * (1 - BROKEN):
                    cuts.append(frozenset(beyond))
        return cuts
