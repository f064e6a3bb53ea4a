"""Tree packing: the greatest rate at which trees all-reduce over shared capacities, and the trees that reach it.

With pipelining the most loaded capacity sets the time of a round, so the best plan packs trees:

    maximise  Σ_r w_r            w_r: bit/s all-reduced at root r
    subject to  w_r = Σ_A y_rA = Σ_B z_rB             y: reduce trees into r, z: broadcast trees out of r
                Σ_rA y_rA·uses_l(A) + Σ_rB z_rB·uses_l(B) ≤ goodput_l        for every capacity l
                w, y, z ≥ 0

There are exponentially many trees, so columns are generated. Given prices π_l of the capacities (the LP's duals), an
edge costs the sum of the prices of the capacities that it draws on, and the most useful tree into (out of) r is a
minimum-cost arborescence (Edmonds 1967). Any prices bound the optimum from above. With a_r, b_r the costs of the
cheapest tree into r and out of r,

    Σ w ≤ Σ_l goodput_l·π_l / min_r (a_r + b_r)

because each bit/s at r pays at least a_r + b_r, and all capacities together are worth Σ goodput_l·π_l. The search ends
when that bound meets the LP's value.

Two things make the search fast. First, one contraction gives the trees of many roots (`arborescence`). Second, a phase
before column generation finds good prices, since the duals of a program with few trees say little: on 1,000 sites, each
with four links of which most are binding, 130 rounds of plain column generation reached half of what the first phase
reaches in 20. It is the algorithm of Frank and Wolfe (1956) on the congestion of a mix of tree pairs: prices are the
softmax of the loads, and each step shifts weight to the pair that is cheapest under them. The second phase, column
generation, prices between the best known dual and the LP's own dual (Wentges 1997), so that prices do not jump between
corners.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import highspy
import numpy as np
from scipy.sparse import csc_array

from testbed.planning.constraints import Floats
from testbed.planning.overlay import Arborescences, DirectedTree, Overlay

#: HiGHS's number of the primal simplex, for which a basis stays feasible when columns are added.
PRIMAL_SIMPLEX = 4

#: The upper and the lower bound have met when they differ by less than this part.
EXACT = 1e-4

#: The most rounds of column generation. Most networks need far fewer; a round for 1,000 sites takes 0.15 s.
ROUNDS = 300

#: Steps of the first phase. On 100 sites with four links each of nearly one rate, the hardest kind of network found,
#: the second phase took 20 s after 50 steps and 1 s after 200; for 1,000 sites some 50 steps are enough.
FIRST_STEPS = 100

#: The sharpness of the softmax, in units of log(capacities) / congestion. Sharper prices find better mixes later,
#: blunter prices find better upper bounds early.
SHARPNESS = 5.0

#: The weight of the best known dual in the prices of the second phase.
STABILITY = 0.5

#: Roots whose trees are added in a round, cheapest first; the others' trees differ little from these.
ROOTS_A_ROUND = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """The trees that were packed, the rate at which they all-reduce, and an upper bound of that rate."""

    overlay: Overlay
    trees: tuple[DirectedTree, ...]
    #: The rate of each tree, in payload bit/s.
    rates_bps: Floats
    #: Prices of the capacities that prove `upper_bps`; all capacities together cost 1.
    prices: Floats
    #: The rate at which the trees together all-reduce.
    rate_bps: float
    #: No set of trees all-reduces faster.
    upper_bps: float

    @property
    def gap(self) -> float:
        """The part by which the optimum may exceed `rate_bps`."""
        return max(0.0, self.upper_bps / self.rate_bps - 1)


def pack(overlay: Overlay, tolerance: float = EXACT, known: Iterable[DirectedTree] = ()) -> Packed:
    """Pack trees over an overlay of at least two members.

    Args:
        overlay: The members, and the capacities between them.
        tolerance: The search ends when no set of trees can be better by more than this part, or after ROUNDS.
        known: Trees to begin with, which take the place of the first phase.

    Raises:
        PackingError: No member is connected with all others in both directions, or the solver gave up.
    """
    return _PackingSearch(overlay, tolerance, known).run()


class _PackingSearch:
    def __init__(self, overlay: Overlay, tolerance: float, known: Iterable[DirectedTree]) -> None:
        self._overlay = overlay
        self._goodput = self._overlay.goodput
        self._program = Program(self._goodput)
        self._tolerance = tolerance
        self._upper = float("inf")
        self._lower = 0.0
        self._best = self._normalized(1 / self._goodput)  # the prices of the least upper bound
        for tree in known:
            self._program.add(tree)

    def run(self) -> Packed:
        if not self._program.trees:
            self._mix()
        self._generate()
        unit = self._overlay.unit_bps
        rates = self._program.rates() * unit
        trees = tuple(self._program.trees)
        return Packed(self._overlay, trees, rates, self._best, self._lower * unit, self._upper * unit)

    def _mix(self) -> None:
        """Run the first phase: mix pairs of trees with ever less congestion (the load of the fullest capacity)."""
        prices = self._best
        load = np.zeros(len(self._goodput))
        for step in range(FIRST_STEPS):
            _, pair = self._price(prices, roots=1)
            added = np.zeros(len(self._goodput))
            for tree in pair:
                added[tree.names] += tree.uses
            load = self._shift(load, added / self._goodput, step)
            self._lower = max(self._lower, 1 / load.max())
            if self._bounds_met():
                return
            prices = self._normalized(_softmax(load) / self._goodput)

    def _shift(self, load: Floats, added: Floats, step: int) -> Floats:
        """Return the load with the new pair's part of the mix, near the classic 2 / (step + 2), that congests least."""
        part = 2 / (step + 2)
        mixes = [(1 - p) * load + p * added for p in ((part,) if step == 0 else (part / 4, part / 2, part))]
        sharpness = _sharpness(mixes[0])
        return min(mixes, key=lambda mix: mix.max() + np.log(np.exp(sharpness * (mix - mix.max())).sum()) / sharpness)

    def _generate(self) -> None:
        """Run the second phase: generate columns until the bounds meet, or no tree is new at the program's prices."""
        stability = STABILITY
        for _ in range(ROUNDS):
            prices = self._best
            if self._program.trees:
                self._lower, duals = self._program.solve()
                if self._bounds_met():
                    return
                if self._lower > 0:  # trees that make no pair have no prices
                    prices = stability * self._best + (1 - stability) * self._normalized(duals)
            grew, _ = self._price(prices, ROOTS_A_ROUND)
            if not grew and stability == 0:
                break
            stability = STABILITY if grew else 0.0
        self._lower, _ = self._program.solve()

    def _bounds_met(self) -> bool:
        return self._upper <= self._lower * (1 + self._tolerance)

    def _price(self, prices: Floats, roots: int) -> tuple[bool, list[DirectedTree]]:
        """Add the trees of the cheapest `roots` roots, and improve the upper bound.

        Returns:
            Whether a tree was new; the trees.
        """
        costs = self._overlay.costs(prices)
        into, out = Arborescences(costs.T), Arborescences(costs)
        totals = into.totals + out.totals
        least = float(totals.min())
        if least == float("inf"):
            raise PackingError("no member is connected with all others in both directions, so the view has no plan")
        if least > 0 and 1 / least < self._upper:
            self._upper, self._best = 1 / least, prices
        trees = []
        for root in np.argsort(totals, kind="stable")[:roots]:
            if totals[root] < float("inf"):
                trees.append(self._overlay.directed_tree(int(root), False, into.parents(int(root))))
                trees.append(self._overlay.directed_tree(int(root), True, out.parents(int(root))))
        new = [self._program.add(tree) for tree in trees]
        return any(new), trees

    def _normalized(self, prices: Floats) -> Floats:
        """Return the prices scaled so that all capacities together cost 1."""
        return prices / float(prices @ self._goodput)


def _sharpness(load: Floats) -> float:
    return SHARPNESS * float(np.log(len(load) + 1) / load.max())


def _softmax(load: Floats) -> Floats:
    softmax: Floats = np.exp(_sharpness(load) * (load - load.max()))
    return softmax


class PackingError(ValueError):
    """No trees can be packed: no member is connected with all others in both directions, or the solver gave up.

    The solver has given up on rates that no network has, which a member had reported.
    """


class Program:
    """The linear program over the known trees, to which column generation adds. HiGHS solves it.

    A row for each direction limits w_r. No equality is needed, because surplus trees of one direction do no harm. Each
    solution starts from the basis of the last one.
    """

    def __init__(self, goodput: Floats) -> None:
        self.trees: list[DirectedTree] = []
        self._highs = _Silent()
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
    highs = _Silent()
    highs.passModel(program)
    _run(highs)
    return np.array(highs.getSolution().col_value)


class _Silent(highspy.Highs):
    """A solver that prints nothing. HiGHS 1.16 prints its version when `__init__` enables callbacks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def _run(highs: highspy.Highs) -> None:
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        status = highs.modelStatusToString(highs.getModelStatus())
        raise PackingError(
            f"the solver HiGHS ended the linear program of tree packing as {status}; look in the view for rates that "
            "no network has"
        )
