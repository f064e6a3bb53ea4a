"""The choice of a few shallow trees that together come near the optimum of tree packing.

A round takes, as the cost model has it, M/R + the longest way up and down, a chunk at a time. The optimum's trees
give the best R, however deep they are; so beside them there are shallow ones in a pool: for central roots, the
cheapest arborescences and the shortest-path trees at

    π_e · M + μ · (delay_e + chunk / rate_e)         π: the optimum's prices, μ: what depth is worth, in EXCHANGE

For limits on the depth, the program over the pool's pairs (reduce tree, broadcast tree) within the limit is solved
again, and again on its largest shares only. The best predicted times are in the choice; where that is not too much
work they are simulated, since trees with the same loads may still wait for each other: of NetStorm's nine sites up to
a tenth of a round lay between plans that were predicted alike. Of nearly equal ones the fewest trees win.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csgraph, csr_array

from testbed.plan import Tree
from testbed.planning.arborescence import Arborescences
from testbed.planning.chunk import SIZES
from testbed.planning.constraints import Constraints
from testbed.planning.overlay import DirectedTree, Floats, Ints
from testbed.planning.pack import Packed
from testbed.planning.program import greatest_rates
from testbed.planning.view import View

#: Of plans whose predicted times differ by less than this part, the one with the fewest trees is taken: each tree has
#: its own slice, and small slices make small chunks.
FEWER = 0.01

#: Plans whose predicted times differ by less than this part are in the choice, so many of them.
ALIKE = 0.05
MOST = 5

#: Decimals to which the rates of a plan are compared with those of another, in units of the overlay's.
SAME_RATES = 6

#: How many trees are tried. Nine sites want some 20 for the optimum, and reach 99 % of it with 8.
COUNTS = (64, 32, 16, 8, 6, 4, 3, 2, 1)

#: Shares below this part are rounding errors of the program.
NOTHING = 1e-6

#: Roots for which shallow trees are made, beside those of the program: the most central ones.
CENTRES = 8

#: What a second of a tree's depth is worth in seconds of drain, when shallow trees are looked for.
EXCHANGE = (0.1, 1.0, 10.0)

#: An edge of no time at all would be none to the search for short paths.
LEAST_HOP_S = 1e-12

#: How many limits on a tree's depth are tried.
DEPTHS = 6


@dataclass(frozen=True, slots=True)
class _TreePair:
    """A reduce tree and a broadcast tree of one root: what they use together, and the seconds a chunk takes there and
    back along the longest paths."""

    into: DirectedTree
    out: DirectedTree
    fill_s: float


class Choice:
    """What there is to choose from, made once; `good` has the best of it."""

    def __init__(self, view: View, limits: Constraints, packed: Packed) -> None:
        self._overlay = packed.overlay
        self._model_bits = 8.0 * view.model_bytes
        self._hop_s = self._hops(view, limits)
        self._pool = list({(p.into.root, p.into.parents, p.out.parents): p for p in self._candidates(packed)}.values())
        self._uses = self._matrix()

    def good(self) -> list[list[Tree]]:
        """The trees of the plans that are predicted to be the fastest, at most MOST: the fewest of near FEWER first.

        From the deepest pool to the shallowest, and from many trees to few, the drain only gets longer: once it alone
        takes longer than the best round, what follows is not looked at.
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
        """Seconds of a small chunk over each edge: its delay, and its transmission when alone."""
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
        """The optimum's trees, a root's reduce trees laid beside its broadcast trees by rate (north-west corner)."""
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
        """Each root's cheapest trees at these costs, and the trees of its cheapest paths."""
        into, out = Arborescences(costs.T), Arborescences(costs)
        ways = [
            csgraph.dijkstra(csr_array(np.where(np.isfinite(c), c, 0)), indices=roots, return_predecessors=True)[1]
            for c in (costs.T, costs)
        ]
        for row, root in enumerate(roots):
            if into.totals[root] + out.totals[root] < float("inf"):
                overlay = self._overlay
                yield self._pair(overlay.tree(into, root, False), overlay.tree(out, root, True))
                up, down = ([int(p) if p >= 0 else root for p in way[row]] for way in ways)
                yield self._pair(overlay.directed_tree(root, False, up), overlay.directed_tree(root, True, down))

    def _pair(self, into: DirectedTree, out: DirectedTree) -> _TreePair:
        return _TreePair(into, out, self._longest(into) + self._longest(out))

    def _longest(self, tree: DirectedTree) -> float:
        """Seconds of a small chunk along the tree's longest path."""
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
        """How often each pair (column) uses each capacity (row)."""
        columns = [np.full(len(t.names), i) for i, p in enumerate(self._pool) for t in (p.into, p.out)]
        names = [t.names for p in self._pool for t in (p.into, p.out)]
        uses = [t.uses for p in self._pool for t in (p.into, p.out)]
        shape = (len(self._overlay.goodput), len(self._pool))
        return csc_array((np.concatenate(uses), (np.concatenate(names), np.concatenate(columns))), shape=shape)

    def _depths(self) -> list[float]:
        """Limits on the depth, the loosest first."""
        fills = np.array([pair.fill_s for pair in self._pool])
        limits = {float(depth) for depth in np.quantile(fills, np.linspace(0, 1, DEPTHS), method="lower")}
        return sorted(limits, reverse=True)

    def _solutions(self, depth: float) -> Iterator[tuple[float, float, Floats]]:
        """Seconds to drain and to fill, and the rates, of the pairs no deeper than `depth`: all, and ever fewer."""
        kept = np.array([i for i, pair in enumerate(self._pool) if pair.fill_s <= depth])
        for count in (len(kept), *(count for count in COUNTS if count < len(kept))):
            if count > len(kept):
                continue  # the last solution used fewer by itself
            rates = self._rates(kept[:count])
            kept = np.argsort(-rates, kind="stable")[: np.count_nonzero(rates)]
            fill = max(self._pool[i].fill_s for i in kept)
            yield self._model_bits / (float(rates.sum()) * self._overlay.unit_bps), fill, rates

    def _rates(self, kept: Ints) -> Floats:
        """The rates of the pairs in `kept`, 0 for the others, whose sum is the greatest."""
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
