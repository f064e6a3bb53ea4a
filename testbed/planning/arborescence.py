"""Minimum-cost arborescences (Chu and Liu 1965, Edmonds 1967) of all roots at once, on dense cost matrices.

Edmonds' contraction does not depend on the root when it goes on until a single node is left: then opening that node
again gives the tree of any root in O(n) (Camerini, Fratta and Maffioli 1979), and the cost of every root's tree
follows from the contraction alone. So pricing trees for n roots costs one contraction of O(n²), not n of them. That is
in C (`arborescence.c`), since packing asks for hundreds, of a dozen nodes each.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from testbed.compiler import library

Costs = NDArray[np.float64]


class Arborescences:
    """The cheapest tree out of each node over all nodes.

    `costs[u, v]` is the cost of the edge u→v, at least 0; infinite where there is none. `totals[r]` is the cost of
    the cheapest tree out of r, infinite when r does not reach every node. Trees into a root are those out of it
    under `costs.T`.
    """

    def __init__(self, costs: Costs) -> None:
        self._n = len(costs)
        present = np.isfinite(costs)
        scale = float(costs[present].max(initial=0.0)) or 1.0
        # An edge that is not there costs more than any tree, so every graph contracts to one node.
        absent = 2.0 * self._n * scale
        finite = np.ascontiguousarray(np.where(present, costs, absent))
        self._hierarchy = np.empty(8 * self._n, dtype=np.int64)  # `struct hierarchy`
        self.totals = np.empty(self._n)
        addresses = (array.ctypes.data for array in (finite, self._hierarchy, self.totals))
        if not _contraction().contract(self._n, *addresses):
            raise MemoryError(f"{self._n} nodes cannot be contracted")
        self.totals[self.totals >= absent / 2] = np.inf

    def parents(self, root: int) -> list[int]:
        """The parent of each node in the cheapest tree out of `root`; the root's own is itself. O(n)."""
        parents = np.empty(self._n, dtype=np.int64)
        if not _contraction().parents(self._n, self._hierarchy.ctypes.data, root, parents.ctypes.data):
            raise MemoryError(f"the tree of {self._n} nodes cannot be opened")
        return parents.tolist()


@cache
def _contraction() -> ctypes.CDLL:
    """The functions of `arborescence.c`, which is compiled first where it must be. CompilerError."""
    functions = library("planning")
    size, address = ctypes.c_int64, ctypes.c_void_p
    functions.contract.argtypes, functions.contract.restype = [size, address, address, address], ctypes.c_bool
    functions.parents.argtypes, functions.parents.restype = [size, address, size, address], ctypes.c_bool
    return functions
