"""A communication graph: which member sends its parameters to which. Immutable and strongly connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from testbed.errors import DetailedError
from testbed.planning.view import Pair


class GraphError(DetailedError, ValueError):
    """A graph over which training cannot reach agreement, with what would make it do so."""


@dataclass(frozen=True)
class Graph:
    """Members and directed edges (sender, receiver); a member's edge to itself is implied and not listed.

    Raises GraphError when a name is unknown or doubled, an edge is a loop, or some member cannot be reached from
    another: what such a member learns would never come to all.
    """

    members: tuple[str, ...]
    edges: frozenset[Pair]

    def __post_init__(self) -> None:
        if not self.members or len(set(self.members)) != len(self.members):
            raise GraphError(
                "a graph's members must be at least one, each named once", field="members", given=self.members
            )
        if unknown := sorted({end for edge in self.edges for end in edge} - set(self.members)):
            raise GraphError(
                f"edges name {', '.join(unknown)}, which are no members; list them or drop the edges",
                rule="unknown-member",
                field="edges",
                given=unknown,
            )
        if loops := sorted(source for source, target in self.edges if source == target):
            raise GraphError(
                f"{', '.join(loops)}: drop the edge to itself, averaging counts a member's own anyway",
                rule="loop",
                field="edges",
                given=loops,
            )
        self._check_connected()

    @classmethod
    def undirected(cls, members: Iterable[str], pairs: Iterable[Pair]) -> Graph:
        """The graph with both directions of each pair."""
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
            f"not strongly connected: what {', '.join(stuck)} learns never reaches {other}; "
            f"add an edge such as {stuck[0]} to {other}",
            rule="not-connected",
            given=tuple(stuck),
            link=f"{stuck[0]}->{other}",
        )

    @cached_property
    def digraph(self) -> nx.DiGraph:
        """The same as a networkx graph, members in order."""
        digraph = nx.DiGraph()
        digraph.add_nodes_from(self.members)
        digraph.add_edges_from(sorted(self.edges))
        return digraph

    @cached_property
    def hops(self) -> Mapping[str, Mapping[str, int]]:
        """hops[u][v]: edges on the shortest path from u to v."""
        return dict(nx.all_pairs_shortest_path_length(self.digraph))

    @property
    def symmetric(self) -> bool:
        """Whether every edge has its reverse."""
        return all((target, source) in self.edges for source, target in self.edges)

    def without(self, gone: str) -> Graph:
        """The graph that is left of this one; GraphError when it falls apart."""
        left = tuple(member for member in self.members if member != gone)
        return Graph(left, frozenset(edge for edge in self.edges if gone not in edge))

    def sources(self, member: str) -> tuple[str, ...]:
        """The members that send to `member`, itself left out, in the members' order."""
        return tuple(other for other in self.members if (other, member) in self.edges)

    def targets(self, member: str) -> tuple[str, ...]:
        """The members to which `member` sends, itself left out, in the members' order."""
        return tuple(other for other in self.members if (member, other) in self.edges)

    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The members in two parts with no edge inside a part (AD-PSGD's active and passive); GraphError if none."""
        if not nx.is_bipartite(self.digraph):
            raise GraphError(
                "a cycle of odd length: no two sides; take an even ring, a torus of even sides, or a tree",
                rule="odd-cycle",
            )
        colour = nx.bipartite.color(self.digraph)
        active, passive = (tuple(m for m in self.members if colour[m] == side) for side in (1, 0))
        return active, passive
