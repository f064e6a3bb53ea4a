"""Packing trees: the greatest rate at which trees all-reduce over shared capacities, and the trees that do it.

With pipelining a round's time is set by the most loaded capacity, so the best plan packs trees:

    maximise  Σ_r w_r            w_r: bit/s all-reduced at root r
    subject to  w_r = Σ_A y_rA = Σ_B z_rB             y: reduce trees into r, z: broadcast trees out of r
                Σ_rA y_rA·uses_l(A) + Σ_rB z_rB·uses_l(B) ≤ goodput_l        for every capacity l
                w, y, z ≥ 0

There are exponentially many trees, so columns are generated. Given prices π_l of the capacities (the LP's duals),
an edge costs the sum of what it draws on, and the most useful tree into (out of) r is a minimum-cost arborescence
(Edmonds 1967). Any prices bound the optimum from above: for a_r, b_r the costs of r's cheapest two trees,

    Σ w ≤ Σ_l goodput_l·π_l / min_r (a_r + b_r)

because each bit/s at r pays at least a_r + b_r out of a purse of Σ goodput_l·π_l. The search ends when that meets
the LP's value.

Two things make it quick. First, trees for many roots come from one contraction (`arborescence`). Second, duals of a
program that knows few trees say little: of 1,000 sites, each with four links of which most are binding, 130 rounds of
plain column generation reached half of what the first phase here reaches in 20. That phase is Frank and Wolfe's
algorithm (1956) on the congestion of a mix of tree pairs: prices are the softmax of the loads, and each step shifts
weight to the pair that is cheapest under them. The second phase prices between the best dual known and the LP's own
(Wentges 1997), which keeps prices from jumping between corners.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from testbed.planning.arborescence import Arborescences
from testbed.planning.overlay import DirectedTree, Floats, Overlay
from testbed.planning.program import PackingError, Program

#: Upper and lower bound have met when they differ by less than this part.
EXACT = 1e-4

#: Rounds at most. Far more than most networks need; a round for 1,000 sites takes 0.15 s.
ROUNDS = 300

#: Steps of the first phase. 100 sites with four links each of nearly one rate, the hardest kind met: after 50 steps
#: the second phase took 20 s, after 200 it took 1 s; 1,000 sites are within reach after some 50.
FIRST_STEPS = 100

#: The softmax's sharpness, in units of log(capacities) / congestion. Sharper prices find better mixes later, blunter
#: ones better upper bounds early.
SHARPNESS = 5.0

#: How far prices stay towards the best dual known.
STABILITY = 0.5

#: Roots whose trees are added in a round, cheapest first: the rest differ little from these.
ROOTS_A_ROUND = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """`rate_bps` is what `trees` carry together, each at its `rates_bps`; no set of trees carries over `upper_bps`.

    `prices` of the capacities, which all together cost 1, prove that.
    """

    overlay: Overlay
    trees: tuple[DirectedTree, ...]
    rates_bps: Floats
    prices: Floats
    rate_bps: float
    upper_bps: float

    @property
    def gap(self) -> float:
        """By what part the optimum may be above `rate_bps`."""
        return max(0.0, self.upper_bps / self.rate_bps - 1)


def pack(overlay: Overlay, tolerance: float = EXACT, known: Iterable[DirectedTree] = ()) -> Packed:
    """Pack trees until no set of them can be better by more than `tolerance`, or the rounds are used up.

    `known` are trees to begin with. At least two members. PackingError when there is no tree at all, or no solution.
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
        self._best = self._normal(1 / self._goodput)  # the prices of the least upper bound
        for tree in known:
            self._program.add(tree)

    def run(self) -> Packed:
        if not self._program.trees:
            self._mix(FIRST_STEPS)
        self._generate()
        unit = self._overlay.unit_bps
        rates = self._program.rates() * unit
        trees = tuple(self._program.trees)
        return Packed(self._overlay, trees, rates, self._best, self._lower * unit, self._upper * unit)

    def _mix(self, steps: int) -> None:
        """First phase: a mix of pairs of trees, with ever less congestion (the load of the fullest capacity)."""
        prices = self._best
        load = np.zeros(len(self._goodput))
        for step in range(steps):
            _, pair = self._price(prices, roots=1)
            added = np.zeros(len(self._goodput))
            for tree in pair:
                added[tree.names] += tree.uses
            load = self._shift(load, added / self._goodput, step)
            self._lower = max(self._lower, 1 / load.max())
            if self._met():
                return
            prices = self._normal(_softmax(load) / self._goodput)

    def _shift(self, load: Floats, added: Floats, step: int) -> Floats:
        """Give the new pair that part of the mix, around the classic 2 / (step + 2), which congests least."""
        part = 2 / (step + 2)
        mixes = [(1 - p) * load + p * added for p in ((part,) if step == 0 else (part / 4, part / 2, part))]
        sharpness = _sharpness(mixes[0])
        return min(mixes, key=lambda mix: mix.max() + np.log(np.exp(sharpness * (mix - mix.max())).sum()) / sharpness)

    def _generate(self) -> None:
        """Second phase: column generation, until the bounds meet or no tree is new even at the program's own prices."""
        stability = STABILITY
        for _ in range(ROUNDS):
            if not self._program.trees:
                prices = self._best
            else:
                self._lower, duals = self._program.solve()
                if self._met():
                    return
                prices = stability * self._best + (1 - stability) * self._normal(duals)
            grew, _ = self._price(prices, ROOTS_A_ROUND)
            if not grew and stability == 0:
                break
            stability = STABILITY if grew else 0.0
        self._lower, _ = self._program.solve()

    def _met(self) -> bool:
        return self._upper <= self._lower * (1 + self._tolerance)

    def _price(self, prices: Floats, roots: int) -> tuple[bool, list[DirectedTree]]:
        """Add the cheapest trees of the cheapest roots: whether any was new, and the trees. Betters the upper bound."""
        costs = self._overlay.costs(prices)
        into, out = Arborescences(costs.T), Arborescences(costs)
        totals = into.totals + out.totals
        least = float(totals.min())
        if least == float("inf"):
            raise PackingError("no member reaches all others and is reached by them: the view has no plan")
        if least > 0 and 1 / least < self._upper:
            self._upper, self._best = 1 / least, prices
        trees = []
        for root in np.argsort(totals, kind="stable")[:roots]:
            if totals[root] < float("inf"):
                trees.append(self._overlay.tree(into, int(root), outward=False))
                trees.append(self._overlay.tree(out, int(root), outward=True))
        new = [self._program.add(tree) for tree in trees]
        return any(new), trees

    def _normal(self, prices: Floats) -> Floats:
        """The same prices at which all capacities together cost 1."""
        return prices / float(prices @ self._goodput)


def _sharpness(load: Floats) -> float:
    return SHARPNESS * float(np.log(len(load) + 1) / load.max())


def _softmax(load: Floats) -> Floats:
    softmax: Floats = np.exp(_sharpness(load) * (load - load.max()))
    return softmax
