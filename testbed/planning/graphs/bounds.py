"""How far one member can be ahead of another, by mode (Hop, arXiv 1902.01064, the table of gaps)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from math import inf

from testbed.planning.graphs.graph import Graph
from testbed.planning.view import Pair


def gap_bounds(
    graph: Graph,
    *,
    max_ig: int | None = None,
    backup: int = 0,
    staleness: int = 0,
    notify_ack: bool = False,
) -> Mapping[Pair, float]:
    """{(i, j): the most that Iter(i) - Iter(j) may be}, infinite where nothing bounds it.

    Two things hold i back. What must arrive: i waits for updates, so each hop of the path j -> i adds at most
    1 + `staleness`; `backup` workers waive it. What must be granted: each hop of the path i -> j adds at most
    `max_ig` (tokens), or 2 with `notify_ack`.
    """
    arrival = inf if backup else 1 + staleness
    grant = 2 if notify_ack else inf if max_ig is None else max_ig
    hops = graph.hops
    return {(i, j): min(arrival * hops[j][i], grant * hops[i][j]) for i, j in permutations(graph.members, 2)}
