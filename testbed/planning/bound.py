"""The bound: the least time of a round that any set of trees reaches. What every policy is reported against.

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
the LP's value. Exact for schemes that reduce each element at one root, latency left out, header bytes counted by
the factor 1448/1514, so that a real run can come near it. The LP is HiGHS's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from testbed.planning.arborescence import arborescence
from testbed.planning.constraints import Constraints
from testbed.planning.view import Pair, View

#: Upper and lower bound have met when they differ by less than this part. The upper one is returned, so no plan
#: beats it.
GAP = 1e-4

#: Far more than needed: 16 members over 8 densely joined sites took 13 rounds of pricing.
MAX_ROUNDS = 500


class BoundError(ValueError):
    """No plan exists under the view: its edges connect no member with all others in both directions."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`rate_bps` is the most payload bit/s all-reduced; `seconds` what model_bytes take at that rate."""

    seconds: float
    rate_bps: float


@dataclass(slots=True)
class _Columns:
    """The trees known so far: for each, its root, whether it broadcasts, and its edges."""

    roots: list[str] = field(default_factory=list)
    broadcasts: list[bool] = field(default_factory=list)
    trees: list[tuple[Pair, ...]] = field(default_factory=list)
    seen: set[tuple[str, bool, tuple[Pair, ...]]] = field(default_factory=set)

    def add(self, root: str, broadcast: bool, edges: Iterable[Pair]) -> bool:
        """Whether the tree is a new one."""
        tree = tuple(sorted(edges))
        if (root, broadcast, tree) in self.seen:
            return False
        self.seen.add((root, broadcast, tree))
        self.roots.append(root)
        self.broadcasts.append(broadcast)
        self.trees.append(tree)
        return True


def bound(view: View) -> Bound:
    """The bound of a view. BoundError when it has no plan at all. 16 members on a dense network: about 0.3 s."""
    if len(view.members) == 1:
        return Bound(0.0, float("inf"))
    limits = Constraints.of(view)
    rate = _best_rate(view.names, limits)
    return Bound(8 * view.model_bytes / rate, rate)


def _best_rate(members: tuple[str, ...], limits: Constraints) -> float:
    names = sorted({name for drawn in limits.drawn.values() for name in drawn})
    unit = float(np.median([limits.goodput_bps[name] for name in names])) if names else 1.0
    goodput = {name: limits.goodput_bps[name] / unit for name in names}
    prices = {name: 1 / goodput[name] for name in names}
    columns = _Columns()
    lower, upper = 0.0, float("inf")
    for _ in range(MAX_ROUNDS):
        cheapest, grew = _price(members, limits.drawn, prices, columns)
        purse = sum(goodput[name] * prices[name] for name in names)
        upper = min(upper, purse / cheapest) if cheapest > 0 else upper
        if not grew or upper <= lower * (1 + GAP):
            break
        lower, prices = _solve(columns, names, goodput, limits.drawn)
    return float(upper * unit)


def _price(
    members: tuple[str, ...], drawn: Mapping[Pair, tuple[str, ...]], prices: Mapping[str, float], columns: _Columns
) -> tuple[float, bool]:
    """Add each root's cheapest two trees; the least cost of such a pair, and whether any tree was new."""
    index = {member: i for i, member in enumerate(members)}
    costs = np.full((len(members), len(members)), np.inf)
    for (source, target), names in drawn.items():
        costs[index[source], index[target]] = sum(prices[name] for name in names)
    cheapest, grew = float("inf"), False
    for root in range(len(members)):
        up, down = arborescence(costs.T, root), arborescence(costs, root)
        if up is None or down is None:
            continue
        reduce = [(v, parent) for v, parent in enumerate(up) if v != root]
        broadcast = [(parent, v) for v, parent in enumerate(down) if v != root]
        cheapest = min(cheapest, float(sum(costs[edge] for edge in reduce + broadcast)))
        for kind, tree in ((False, reduce), (True, broadcast)):
            grew |= columns.add(members[root], kind, ((members[u], members[v]) for u, v in tree))
    if cheapest == float("inf"):
        raise BoundError("no member reaches all others and is reached by them: the view has no plan")
    return cheapest, grew


def _solve(
    columns: _Columns, names: list[str], goodput: Mapping[str, float], drawn: Mapping[Pair, tuple[str, ...]]
) -> tuple[float, dict[str, float]]:
    """The LP over the known trees: its value and the capacities' prices.

    Variables: one rate a tree, then one w a root. Rows: one a capacity, then two a root (w_r ≤ Σ its reduce trees,
    w_r ≤ Σ its broadcast trees: a surplus of one kind is of no use, so this is as good as equality).
    """
    kinds = sorted(set(zip(columns.roots, columns.broadcasts, strict=True)))
    roots = sorted(set(columns.roots))
    row_of = {name: row for row, name in enumerate(names)}
    kind_row = {kind: len(names) + i for i, kind in enumerate(kinds)}
    root_column = {root: len(columns.trees) + i for i, root in enumerate(roots)}
    entries: list[tuple[int, int, float]] = []
    for column, tree in enumerate(columns.trees):
        entries += [(row_of[name], column, 1.0) for edge in tree for name in drawn[edge]]
        entries.append((kind_row[columns.roots[column], columns.broadcasts[column]], column, -1.0))
    entries += [(row, root_column[root], 1.0) for (root, _), row in kind_row.items()]
    rows, cols, values = zip(*entries, strict=True)
    width = len(columns.trees) + len(roots)
    matrix = coo_array((values, (rows, cols)), shape=(len(names) + len(kinds), width)).tocsr()  # doubles add up
    limits = np.concatenate([[goodput[name] for name in names], np.zeros(len(kinds))])
    gain = np.concatenate([np.zeros(len(columns.trees)), -np.ones(len(roots))])
    solution = linprog(gain, A_ub=matrix, b_ub=limits, method="highs")
    if solution.status != 0:
        raise BoundError(f"the linear program of the bound was not solved: {solution.message}")
    duals = -np.asarray(solution.ineqlin.marginals)
    return -float(solution.fun), {name: float(duals[row]) for name, row in row_of.items()}
