"""The choice of a few shallow trees that together come near the optimum of tree packing [ours].

By the cost model a round takes M/R plus the longest path up and down, a chunk at a time. The trees of the optimum give
the best R, whatever their depth. A pool therefore has shallow trees beside them: for central roots, the cheapest
arborescences and the shortest-path trees, where an edge costs

    π_e · M + μ · (delay_e + chunk / rate_e)         π: the optimum's prices, μ: the worth of depth, from EXCHANGE

For several limits on the depth, the program over the pool's pairs (reduce tree, broadcast tree) within the limit is
solved, and then again over the pairs with the largest shares only. The solutions with the best predicted times make the
choice. `packing` simulates these on small networks, because trees with equal loads may still wait for each other: on
NetStorm's nine sites, plans with equal predictions differed by up to a tenth of a round. Among nearly equal plans the
one with the fewest trees wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csgraph, csr_array

from testbed.plan import Tree
from testbed.planning.constraints import Constraints, Floats, Ints
from testbed.planning.cost import SIZES
from testbed.planning.overlay import Arborescences, DirectedTree
from testbed.planning.pack import Packed, greatest_rates
from testbed.planning.view import View

#: Among plans whose predicted times differ by less than this part, the one with the fewest trees is taken: each tree
#: has its own slice, and small slices make small chunks.
FEWER = 0.01

#: Plans whose predicted times exceed the best by less than this part are in the choice, at most MOST of them.
ALIKE = 0.05
MOST = 5

#: Decimals, in the overlay's unit, to which the rates of two plans are compared.
SAME_RATES = 6

#: Numbers of trees that are tried. Nine sites need some 20 for the optimum, and reach 99 % of it with 8.
COUNTS = (64, 32, 16, 8, 6, 4, 3, 2, 1)

#: Shares below this part are rounding errors of the program.
NOTHING = 1e-6

#: The number of most central roots for which shallow trees are made, beside the roots of the program.
CENTRES = 8

#: Values of μ: the seconds of drain that a second of a tree's depth is worth.
EXCHANGE = (0.1, 1.0, 10.0)

#: The least time of an edge: SciPy's search for shortest paths takes an edge of 0 for a missing one.
LEAST_HOP_S = 1e-12

#: The number of limits on a tree's depth that are tried.
DEPTHS = 6


@dataclass(frozen=True, slots=True)
class _TreePair:
    """A reduce and a broadcast tree of one root; `fill_s` is a chunk's time there and back on the longest paths."""

    into: DirectedTree
    out: DirectedTree
    fill_s: float


class TreeChoice:
    """The pool of tree pairs for a packed overlay, and the good sets of trees in it."""

    def __init__(self, view: View, limits: Constraints, packed: Packed) -> None:
        self._overlay = packed.overlay
        self._model_bits = 8.0 * view.model_bytes
        self._hop_s = self._hops(view, limits)
        self._pool = list({(p.into.root, p.into.parents, p.out.parents): p for p in self._candidates(packed)}.values())
        self._uses = self._matrix()

    def good(self) -> list[list[Tree]]:
        """Return up to MOST sets of trees, each the trees of one candidate plan, those with the shortest rounds first.

        Plans within FEWER of the best come first, and the fewest trees among these. From the deepest limit to the
        shallowest, and from many trees to few, the drain only gets longer; a series ends once the drain alone exceeds
        the best round.
        """
        found: list[tuple[float, Floats]] = []
        fastest = float("inf")
        for depth in self._depths():
            before = len(found)
            for drain_s, fill_s, rates in self._solutions(depth):
                if drain_s > fastest * (1 + ALIKE):
                    break
                found.append((drain_s + fill_s, rates))
                fastest = min(fastest, drain_s + fill_s)
            if len(found) == before:
                break
        alike = [(seconds, rates) for seconds, rates in found if seconds <= fastest * (1 + ALIKE)]
        alike.sort(key=lambda one: (one[0] > fastest * (1 + FEWER), np.count_nonzero(one[1])))
        distinct = {rates.round(SAME_RATES).tobytes(): rates for _, rates in alike}
        return [self._trees(rates) for rates in list(distinct.values())[:MOST]]

    def _hops(self, view: View, limits: Constraints) -> Floats:
        """Return the seconds of a small chunk over each edge: its delay, and its transmission on an idle network."""
        names = self._overlay.members
        number = {name: i for i, name in enumerate(names)}
        hops = np.full((len(names), len(names)), np.inf)
        chunk_bits = 8 * min(SIZES[-2], view.model_bytes)
        for (source, target), drawn in limits.drawn.items():
            rate = min((limits.goodput_bps[name] for name in drawn), default=float("inf"))
            hops[number[source], number[target]] = view.edge_delay(source, target) + chunk_bits / rate
        np.maximum(hops, LEAST_HOP_S, out=hops)
        return hops

    def _candidates(self, packed: Packed) -> Iterator[_TreePair]:
        yield from self._optimal(packed)
        hops = np.where(np.isfinite(self._hop_s), self._hop_s, 0)
        way_s = csgraph.dijkstra(csr_array(hops))
        centres = np.argsort(way_s.max(axis=0) + way_s.max(axis=1), kind="stable")[:CENTRES]
        roots = sorted({*centres.tolist(), *(tree.root for tree in packed.trees[-4 * CENTRES :])})
        prices = self._overlay.costs(packed.prices) * self._model_bits / self._overlay.unit_bps
        for worth in EXCHANGE:
            yield from self._shallow(prices + worth * self._hop_s, roots)

    def _optimal(self, packed: Packed) -> Iterator[_TreePair]:
        """Yield the optimum's trees, each root's reduce and broadcast trees paired by rate (north-west corner rule)."""
        used = [(t, r) for t, r in zip(packed.trees, packed.rates_bps, strict=True) if r > NOTHING * packed.rate_bps]
        for root in sorted({tree.root for tree, _ in used}):
            into = sorted(((r, t) for t, r in used if t.root == root and not t.outward), key=lambda x: -x[0])
            out = sorted(((r, t) for t, r in used if t.root == root and t.outward), key=lambda x: -x[0])
            while into and out:
                (up, reduce), (down, broadcast) = into[0], out[0]
                yield self._pair(reduce, broadcast)
                both = min(up, down)
                into = [(up - both, reduce), *into[1:]] if up > both else into[1:]
                out = [(down - both, broadcast), *out[1:]] if down > both else out[1:]

    def _shallow(self, costs: Floats, roots: Sequence[int]) -> Iterator[_TreePair]:
        """Yield each root's cheapest trees at these costs, and the trees of its cheapest paths."""
        into, out = Arborescences(costs.T), Arborescences(costs)
        ways = [
            csgraph.dijkstra(csr_array(np.where(np.isfinite(c), c, 0)), indices=roots, return_predecessors=True)[1]
            for c in (costs.T, costs)
        ]
        for row, root in enumerate(roots):
            if into.totals[root] + out.totals[root] < float("inf"):
                paths = ([int(p) if p >= 0 else root for p in way[row]] for way in ways)
                for up, down in ((into.parents(root), out.parents(root)), tuple(paths)):
                    tree = self._overlay.directed_tree
                    yield self._pair(tree(root, False, up), tree(root, True, down))

    def _pair(self, into: DirectedTree, out: DirectedTree) -> _TreePair:
        return _TreePair(into, out, self._longest(into) + self._longest(out))

    def _longest(self, tree: DirectedTree) -> float:
        """Return the seconds of a small chunk along the tree's longest path between the root and a leaf."""
        seconds = {tree.root: 0.0}
        for member in range(len(tree.parents)):
            way = []
            while member not in seconds:
                way.append(member)
                member = tree.parents[member]
            for child in reversed(way):
                parent = tree.parents[child]
                hop = self._hop_s[parent, child] if tree.outward else self._hop_s[child, parent]
                seconds[child] = seconds[parent] + float(hop)
        return max(seconds.values())

    def _matrix(self) -> csc_array:
        """Return how often each pair (column) uses each capacity (row)."""
        columns = [np.full(len(t.names), i) for i, p in enumerate(self._pool) for t in (p.into, p.out)]
        names = [t.names for p in self._pool for t in (p.into, p.out)]
        uses = [t.uses for p in self._pool for t in (p.into, p.out)]
        shape = (len(self._overlay.goodput), len(self._pool))
        return csc_array((np.concatenate(uses), (np.concatenate(names), np.concatenate(columns))), shape=shape)

    def _depths(self) -> list[float]:
        """Return the limits on the depth, the loosest first."""
        fills = np.array([pair.fill_s for pair in self._pool])
        limits = {float(depth) for depth in np.quantile(fills, np.linspace(0, 1, DEPTHS), method="lower")}
        return sorted(limits, reverse=True)

    def _solutions(self, depth: float) -> Iterator[tuple[float, float, Floats]]:
        """Yield (drain seconds, fill seconds, rates) of all pairs that fill within `depth` seconds, then of fewer."""
        kept = np.array([i for i, pair in enumerate(self._pool) if pair.fill_s <= depth])
        for count in (len(kept), *(count for count in COUNTS if count < len(kept))):
            if count > len(kept):
                continue  # the last solution already used fewer pairs
            rates = self._rates(kept[:count])
            kept = np.argsort(-rates, kind="stable")[: np.count_nonzero(rates)]
            fill = max(self._pool[i].fill_s for i in kept)
            yield self._model_bits / (float(rates.sum()) * self._overlay.unit_bps), fill, rates

    def _rates(self, kept: Ints) -> Floats:
        """Return the rates with the greatest sum of the pairs in `kept`; 0 for the other pairs."""
        greatest = greatest_rates(self._uses[:, kept], self._overlay.goodput)
        rates = np.zeros(len(self._pool))
        rates[kept] = np.where(greatest > NOTHING * greatest.sum(), greatest, 0)
        return rates

    def _trees(self, rates: Floats) -> list[Tree]:
        names = self._overlay.members
        chosen = np.flatnonzero(rates)
        total = float(rates.sum())
        return [
            Tree(
                names[self._pool[i].into.root],
                _named(names, self._pool[i].into),
                _named(names, self._pool[i].out),
                float(rates[i]) / total,
            )
            for i in chosen
        ]


def _named(names: Sequence[str], tree: DirectedTree) -> dict[str, str]:
    return {names[child]: names[parent] for child, parent in enumerate(tree.parents) if child != tree.root}
