"""Communication graphs (which member sends its parameters to which), their families, and the weights of averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import isqrt
from typing import Literal

import networkx as nx

from testbed.errors import DetailedError
from testbed.planning.view import Pair, View

#: weights[receiver][sender], the receiver itself among the senders; each row sums to 1.
Weights = Mapping[str, Mapping[str, float]]

#: The rule by which members weigh the parameters that they average.
Weighing = Literal["uniform", "metropolis"]


class GraphError(DetailedError, ValueError):
    """Training cannot reach agreement over a graph; the text names an edge, or a number of members, to change."""


@dataclass(frozen=True)
class Graph:
    """A directed communication graph: which member sends its updates to which.

    Raises GraphError if a name is unknown or given twice, an edge is a loop, or a member cannot reach another: its
    updates would never come to all.
    """

    members: tuple[str, ...]
    #: Directed edges (sender, receiver). A member's edge to itself is implied and not listed.
    edges: frozenset[Pair]

    def __post_init__(self) -> None:
        if not self.members or len(set(self.members)) != len(self.members):
            raise GraphError(
                "a graph's members must be at least one, each named once", field="members", given=self.members
            )
        if unknown := sorted({end for edge in self.edges for end in edge} - set(self.members)):
            text = f"edges name {', '.join(unknown)}, not among the members; list them, or drop the edges"
            raise GraphError(text, rule="unknown-member", field="edges", given=unknown)
        if loops := sorted(source for source, target in self.edges if source == target):
            text = f"{', '.join(loops)}: drop the edge from the member to itself, which averaging implies"
            raise GraphError(text, rule="loop", field="edges", given=loops)
        self._check_connected()

    @classmethod
    def undirected(cls, members: Iterable[str], pairs: Iterable[Pair]) -> Graph:
        """Return the graph with both directions of each pair."""
        pairs = tuple(pairs)
        return cls(tuple(members), frozenset(pairs) | frozenset((v, u) for u, v in pairs))

    def _check_connected(self) -> None:
        components = [sorted(component) for component in nx.strongly_connected_components(self.digraph)]
        if len(components) == 1:
            return
        condensed = nx.condensation(self.digraph)
        last = next(node for node in condensed if condensed.out_degree(node) == 0)
        stuck = sorted(condensed.nodes[last]["members"])
        other = next(member for member in self.members if member not in stuck)
        raise GraphError(
            f"not strongly connected: updates of {', '.join(stuck)} never reach {other}; add an edge such as "
            f"{stuck[0]} to {other}",
            rule="not-connected",
            given=tuple(stuck),
            link=f"{stuck[0]}->{other}",
        )

    @cached_property
    def digraph(self) -> nx.DiGraph:
        """This graph for networkx, members in order."""
        digraph = nx.DiGraph()
        digraph.add_nodes_from(self.members)
        digraph.add_edges_from(sorted(self.edges))
        return digraph

    @cached_property
    def hops(self) -> Mapping[str, Mapping[str, int]]:
        """The number of edges on the shortest path from u to v, at hops[u][v]."""
        return dict(nx.all_pairs_shortest_path_length(self.digraph))

    @property
    def symmetric(self) -> bool:
        """True if every edge has its reverse."""
        return all((target, source) in self.edges for source, target in self.edges)

    def without(self, gone: str) -> Graph:
        """Return this graph without the member `gone`. Raises GraphError if the rest is not strongly connected."""
        left = tuple(member for member in self.members if member != gone)
        return Graph(left, frozenset(edge for edge in self.edges if gone not in edge))

    def sources(self, member: str) -> tuple[str, ...]:
        """Return the members that send to `member`, without itself, in the members' order."""
        return tuple(other for other in self.members if (other, member) in self.edges)

    def targets(self, member: str) -> tuple[str, ...]:
        """Return the members to which `member` sends, without itself, in the members' order."""
        return tuple(other for other in self.members if (member, other) in self.edges)

    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return two parts of the members without an edge inside a part: AD-PSGD's active and passive members.

        Raises GraphError if the graph has a cycle of odd length: then there are no such parts.
        """
        if not nx.is_bipartite(self.digraph):
            raise GraphError(
                "the graph has a cycle of odd length, so it is not bipartite; take a ring of an even number of "
                "members, a torus of even sides, or a tree",
                rule="odd-cycle",
            )
        colour = nx.bipartite.color(self.digraph)
        active, passive = (tuple(m for m in self.members if colour[m] == side) for side in (1, 0))
        return active, passive


def weigh(graph: Graph, weighing: Weighing) -> Weights:
    """Return the weights by a rule. Raises GraphError if the rule does not fit the graph."""
    return metropolis(graph) if weighing == "metropolis" else uniform(graph)


def uniform(graph: Graph) -> Weights:
    """Return equal weights of each member's senders and itself (Hop, arXiv 1902.01064).

    Members agree on the plain mean only if all have as many in-neighbours as out-neighbours, and all equally many.
    """
    rows = {}
    for member in graph.members:
        senders = (member, *graph.sources(member))
        rows[member] = dict.fromkeys(senders, 1 / len(senders))
    return rows


def metropolis(graph: Graph) -> Weights:
    """Return Metropolis weights (Xiao, Boyd and Lall 2005): any symmetric graph agrees on the plain mean.

    w[i][j] = 1 / (1 + max(degree i, degree j)) for neighbours; the rest is the member's own weight. Raises GraphError
    if an edge has one direction only.
    """
    if not graph.symmetric:
        u, v = next(edge for edge in sorted(graph.edges) if edge[::-1] not in graph.edges)
        text = f"Metropolis weights need both directions of each edge: add an edge {v} to {u}, or take uniform weights"
        raise GraphError(text, rule="one-way-edge", link=f"{v}->{u}")
    degree = {member: len(graph.sources(member)) for member in graph.members}
    rows = {}
    for member in graph.members:
        row = {other: 1 / (1 + max(degree[member], degree[other])) for other in graph.sources(member)}
        rows[member] = {member: 1 - sum(row.values()), **row}
    return rows


def ring(members: Sequence[str]) -> Graph:
    """Return the ring: each member and the next one, in both directions."""
    return Graph.undirected(members, _ring_pairs(members))


def ring_based(members: Sequence[str]) -> Graph:
    """Return a ring with chords between opposite members (Hop, evaluation); GraphError if their number is odd."""
    return Graph.undirected(members, _ring_based_pairs(members))


def double_ring(members: Sequence[str]) -> Graph:
    """Return two ring-based graphs over half of the members each, joined twin by twin (Hop, evaluation).

    Raises GraphError unless the number of members is a multiple of 4.
    """
    if len(members) % 4:
        text = f"double-ring needs a multiple of 4 members, not {len(members)}: two halves of an even number each"
        raise GraphError(text, field="members", given=len(members))
    half = len(members) // 2
    left, right = members[:half], members[half:]
    pairs = [*_ring_based_pairs(left), *_ring_based_pairs(right), *zip(left, right, strict=True)]
    return Graph.undirected(members, pairs)


def exponential(members: Sequence[str]) -> Graph:
    """Return the one-way graph in which members send to those 1, 2, 4, ... positions on: about log2(n) edges each."""
    n = len(members)
    strides = [2**power for power in range((n - 1).bit_length())]
    edges = ((members[i], members[(i + stride) % n]) for i in range(n) for stride in strides)
    return Graph(tuple(members), frozenset(edges))


def torus(members: Sequence[str]) -> Graph:
    """Return a grid as square as the number of members allows, with wrapped edges; GraphError for a prime number."""
    n = len(members)
    rows = next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)
    if rows == 1:
        text = f"torus: {n} members do not fill a grid of two rows or more; take another number of members, or a ring"
        raise GraphError(text, field="members", given=n)
    columns = n // rows
    grid = [list(members[row * columns : (row + 1) * columns]) for row in range(rows)]
    across = [pair for row in grid for pair in _ring_pairs(row)]
    down = [pair for column in zip(*grid, strict=True) for pair in _ring_pairs(column)]
    return Graph.undirected(members, across + down)


def complete(members: Sequence[str]) -> Graph:
    """Return the graph with an edge between every two members."""
    return Graph(tuple(members), frozenset((u, v) for u in members for v in members if u != v))


#: The graph families by name.
FAMILIES: dict[str, Callable[[Sequence[str]], Graph]] = {
    "ring": ring,
    "ring-based": ring_based,
    "double-ring": double_ring,
    "exponential": exponential,
    "torus": torus,
    "complete": complete,
}


def make_graph(family: str, members: Sequence[str]) -> Graph:
    """Return the graph of a family over `members` in order.

    Raises GraphError if the family is unknown (the text lists those there are), or needs another number of members.
    """
    if family not in FAMILIES:
        raise GraphError(f"no graph {family!r}; there are: {', '.join(FAMILIES)}", field="family", given=family)
    if len(members) < 2:
        raise GraphError(f"{family} needs at least 2 members, not {len(members)}", field="members", given=len(members))
    return FAMILIES[family](members)


def fast_edges(view: View, degree: int) -> Graph:
    """Return a connected graph of the fastest pairs of members of `view`, in both directions [ours].

    A pair is as fast as the slower of its two directions, because a synchronous round waits for both. Pairs are taken
    fastest first, as in Kruskal's algorithm: first the pairs that join two parts, then any pair, while both ends have
    fewer than `degree` neighbours. Parts that this limit leaves apart are joined by their fastest pair, past the limit.

    Raises GraphError if there are fewer than two members, if `degree` is below 2 (which joins two members only), or if
    the view's edges leave members apart.
    """
    if (count := len(view.names)) < 2:
        raise GraphError(f"network needs at least 2 members, not {count}", field="members", given=count)
    if degree < 2:
        raise GraphError(
            f"degree {degree}: a connected graph needs at least 2 neighbours a member", field="degree", given=degree
        )
    pairs = _fastest_first(view)
    graph = nx.Graph()
    graph.add_nodes_from(view.names)
    _join(graph, pairs, degree)
    _join(graph, pairs, len(view.names))
    for u, v in pairs:
        if graph.degree[u] < degree and graph.degree[v] < degree:
            graph.add_edge(u, v)
    return Graph.undirected(view.names, graph.edges)


def _fastest_first(view: View) -> list[Pair]:
    def rate(pair: Pair) -> float:
        return min(view.edges[pair].rate_bps, view.edges[pair[::-1]].rate_bps)

    both_ways = [(u, v) for u, v in combinations(view.names, 2) if (u, v) in view.edges and (v, u) in view.edges]
    return sorted(both_ways, key=rate, reverse=True)


def _join(graph: nx.Graph, pairs: Iterable[Pair], degree: int) -> None:
    """Add each pair that joins two parts of `graph` and whose ends have fewer than `degree` neighbours."""
    parts = nx.utils.UnionFind(graph)
    for u, v in graph.edges:
        parts.union(u, v)
    for u, v in pairs:
        if parts[u] != parts[v] and graph.degree[u] < degree and graph.degree[v] < degree:
            graph.add_edge(u, v)
            parts.union(u, v)


def _ring_pairs(members: Sequence[str]) -> list[Pair]:
    return list(zip(members, [*members[1:], members[0]], strict=True))


def _ring_based_pairs(members: Sequence[str]) -> list[Pair]:
    if len(members) % 2:
        text = f"ring-based needs an even number of members, not {len(members)}: each needs an opposite one"
        raise GraphError(text, field="members", given=len(members))
    half = len(members) // 2
    return [*_ring_pairs(members), *zip(members[:half], members[half:], strict=True)]
