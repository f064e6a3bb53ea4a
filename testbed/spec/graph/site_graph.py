"""A graph as a file has it: nodes by their ids, and edges between two of them; direction is not looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import networkx as nx

from testbed.spec.errors import Fault, SpecError

#: Latitude and longitude in degrees.
Position = tuple[float, float]

#: How many names a note lists.
LISTED = 8


@dataclass(frozen=True, slots=True)
class GraphNode:
    """`label` is the node's name in the file, or None where it has only an id."""

    label: str | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """What the file says of an edge; None where it leaves it out. `delay_ms` is one way, `loss` a share.

    `place` says where in the file it stands, in an error's words.
    """

    source: str
    target: str
    km: float | None = None
    delay_ms: float | None = None
    rate_bps: float | None = None
    jitter_ms: float | None = None
    loss: float | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True)
class SiteGraph:
    """Edges join two different nodes of the graph; several may join the same two. `notes` say what was not read."""

    nodes: Mapping[str, GraphNode]
    edges: tuple[GraphEdge, ...]
    notes: tuple[str, ...] = ()

    def called(self, node: str) -> str:
        """The node as its file calls it, in print."""
        return self.nodes[node].label or printable(node)

    def largest_component(self, file: Path, strict: bool) -> tuple[SiteGraph, tuple[str, ...]]:
        """The graph without the nodes that its largest component does not reach, and a note where there are such; of
        components of the same size the first. Under `strict` such nodes are a SpecError."""
        graph = nx.Graph()
        graph.add_nodes_from(self.nodes)
        graph.add_edges_from((edge.source, edge.target) for edge in self.edges)
        components = sorted(nx.connected_components(graph), key=len, reverse=True)
        if len(components) == 1:
            return self, self.notes
        kept = components[0]
        left_out = [self.called(node) for node in self.nodes if node not in kept]
        rule = f"the graph has {len(components)} components: no edge joins the largest, of {len(kept)} nodes, and the "
        rule += f"others, of {len(left_out)}: {some(left_out)}"
        if strict:
            raise SpecError(
                file, [Fault("edges", rule, "an edge between them; or import the largest, without --strict")]
            )
        nodes = {node: its for node, its in self.nodes.items() if node in kept}
        edges = tuple(edge for edge in self.edges if edge.source in kept)
        return SiteGraph(nodes, edges), (f"{rule[0].upper()}{rule[1:]}. The largest is taken.", *self.notes)


def printable(text: str) -> str:
    """The text as one line of what can be shown, and what YAML can hold."""
    return "".join(letter for letter in text if letter.isprintable()).strip()


def some(names: list[str]) -> str:
    """The names as a note lists them: not all of hundreds."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
