"""Minimum-cost arborescences (Chu and Liu 1965, Edmonds 1967) of all roots at once, on dense cost matrices.

Edmonds' contraction does not depend on the root if it continues until a single node is left. Expanding that node gives
the tree of any root in O(n) (Camerini, Fratta and Maffioli 1979), and the contraction alone gives the cost of every
root's tree. So the trees of n roots are priced by one contraction of O(n²), not by n of them. The contraction is in C
(`arborescence.c`), because packing needs hundreds, of a dozen nodes each.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from testbed.compiler import library
from testbed.planning.constraints import Floats


class Arborescences:
    """The cheapest spanning tree out of each node. Trees into a root are those out of it under `costs.T`.

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
        if not _contraction().contract(self._n, *addresses):
            raise MemoryError(f"out of memory while contracting {self._n} nodes")
        self.totals[self.totals >= absent / 2] = np.inf

    def parents(self, root: int) -> list[int]:
        """Return each node's parent in the cheapest tree out of `root`; the root is its own parent. O(n)."""
        parents = np.empty(self._n, dtype=np.int64)
        if not _contraction().parents(self._n, self._hierarchy.ctypes.data, root, parents.ctypes.data):
            raise MemoryError(f"out of memory while expanding a tree of {self._n} nodes")
        return parents.tolist()


@cache
def _contraction() -> ctypes.CDLL:
    """Return the functions of `arborescence.c`, compiled first if needed. Raises CompilerError."""
    functions = library("planning")
    size, address = ctypes.c_int64, ctypes.c_void_p
    functions.contract.argtypes, functions.contract.restype = [size, address, address, address], ctypes.c_bool
    functions.parents.argtypes, functions.parents.restype = [size, address, size, address], ctypes.c_bool
    return functions
