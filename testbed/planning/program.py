"""The linear program of tree packing (`pack`) over a growing set of known trees. HiGHS solves it."""

from __future__ import annotations

import highspy
import numpy as np
from scipy.sparse import csc_array

from testbed.planning.constraints import Floats
from testbed.planning.overlay import DirectedTree

#: HiGHS's number of the primal simplex, for which a basis stays feasible when columns are added.
PRIMAL_SIMPLEX = 4


class PackingError(ValueError):
    """No trees can be packed: no member is connected with all others in both directions, or the solver gave up.

    The solver has given up on rates that no network has, which a member had reported.
    """


class Program:
    """The restricted program of column generation: `pack` derives it.

        maximise    Σ over roots of w_r
        subject to  Σ over trees of rate · uses ≤ goodput                              a row for every capacity
                    w_r ≤ Σ rates of trees into r,  w_r ≤ Σ rates of trees out of r    two rows for every root

    The rows of a root need no equality, because surplus trees of one direction do no harm. Each solution starts from
    the basis of the last one.
    """

    def __init__(self, goodput: Floats) -> None:
        self.trees: list[DirectedTree] = []
        self._highs = _silent()
        self._highs.setOptionValue("simplex_strategy", PRIMAL_SIMPLEX)
        self._rows = len(goodput)
        for limit in goodput:
            self._highs.addRow(-highspy.kHighsInf, limit, 0, [], [])
        self._direction_row: dict[tuple[int, bool], int] = {}
        self._known: set[tuple[int, bool, tuple[int, ...]]] = set()
        self._column: list[int] = []

    def add(self, tree: DirectedTree) -> bool:
        """Add a tree; return whether it is new."""
        key = (tree.root, tree.outward, tree.parents)
        if key in self._known:
            return False
        self._known.add(key)
        if (tree.root, tree.outward) not in self._direction_row:
            self._add_root(tree.root)
        rows = np.append(tree.names, self._direction_row[tree.root, tree.outward]).astype(np.int32)
        self._column.append(self._highs.getNumCol())
        self._highs.addCol(0.0, 0.0, highspy.kHighsInf, len(rows), rows, np.append(tree.uses, -1.0))
        self.trees.append(tree)
        return True

    def _add_root(self, root: int) -> None:
        for outward in (False, True):
            self._direction_row[root, outward] = self._highs.getNumRow()
            self._highs.addRow(-highspy.kHighsInf, 0.0, 0, [], [])
        rows = [self._direction_row[root, outward] for outward in (False, True)]
        self._highs.addCol(-1.0, 0.0, highspy.kHighsInf, 2, rows, [1.0, 1.0])

    def solve(self) -> tuple[float, Floats]:
        """Return the greatest rate of the known trees, and the capacities' prices. Raises PackingError."""
        _run(self._highs)
        duals = -np.array(self._highs.getSolution().row_dual[: self._rows])
        return -self._highs.getObjectiveValue(), np.maximum(duals, 0.0)

    def rates(self) -> Floats:
        """Return the rate of each of `trees` in the last solution."""
        return np.array(self._highs.getSolution().col_value)[self._column]


def greatest_rates(uses: csc_array, goodput: Floats) -> Floats:
    """Return the rates ≥ 0 of the greatest sum with `uses` · rates ≤ `goodput`. Raises PackingError.

    SciPy's `linprog` gives the same rates and takes three times as long around the solver.

    Args:
        uses: How often each column uses each capacity, shape (capacities, columns).
        goodput: The capacities' limits, shape (capacities,).
    """
    rows, columns = uses.shape
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = rows, columns
    program.col_cost_ = np.full(columns, -1.0)
    program.col_lower_, program.col_upper_ = np.zeros(columns), np.full(columns, highspy.kHighsInf)
    program.row_lower_, program.row_upper_ = np.full(rows, -highspy.kHighsInf), goodput
    matrix = program.a_matrix_
    matrix.start_, matrix.index_, matrix.value_ = uses.indptr, uses.indices, uses.data
    highs = _silent()
    highs.passModel(program)
    _run(highs)
    return np.array(highs.getSolution().col_value)


def _silent() -> highspy.Highs:
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    return highs


def _run(highs: highspy.Highs) -> None:
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        status = highs.modelStatusToString(highs.getModelStatus())
        raise PackingError(
            f"the solver HiGHS ended the linear program of tree packing as {status}; look in the view for rates that "
            "no network has"
        )
