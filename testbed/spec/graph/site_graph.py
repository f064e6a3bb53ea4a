"""A graph as a file has it: nodes by their ids, edges between two of them without a direction, and sites' names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import networkx as nx

from testbed.spec.errors import Fault, SpecError
from testbed.spec.topology import MAX_INTERFACE_NAME, MAX_NAME, RESERVED

#: Latitude and longitude in degrees.
Position = tuple[float, float]

#: How many names a note lists.
LISTED = 8


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of a graph's file, of which a site is made."""

    #: The node's name in the file; None where it has only an id.
    label: str | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge of a graph. A value is None where the file does not have it."""

    source: str
    target: str
    km: float | None = None
    #: One way.
    delay_ms: float | None = None
    rate_bps: float | None = None
    jitter_ms: float | None = None
    #: A share, in [0, 1].
    loss: float | None = None
    #: The edge's place in the file, for errors.
    place: str | None = None


@dataclass(frozen=True, slots=True)
class SiteGraph:
    """A network as a graph's file has it: nodes by their ids, and edges without a direction."""

    #: Nodes by id.
    nodes: Mapping[str, GraphNode]
    #: Each edge joins two different nodes; several edges may join the same two.
    edges: tuple[GraphEdge, ...]
    #: Notes on values in the file that were not read.
    notes: tuple[str, ...] = ()

    def called(self, node: str) -> str:
        """Return the node's name in its file, for notes and errors."""
        return self.nodes[node].label or printable(node)

    def largest_component(self, file: Path, strict: bool) -> tuple[SiteGraph, tuple[str, ...]]:
        """Return the largest component (the first of equal ones), and the notes, with a note on other components.

        SpecError: `strict` is true, and there are other components.
        """
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
                file, [Fault("edges", rule, "an edge between the components; or the largest alone, without --strict")]
            )
        nodes = {node: its for node, its in self.nodes.items() if node in kept}
        edges = tuple(edge for edge in self.edges if edge.source in kept)
        return SiteGraph(nodes, edges), (f"{rule[0].upper()}{rule[1:]}. The largest is taken.", *self.notes)


def printable(text: str) -> str:
    """Return the text as one line of letters that can be shown, and that YAML can hold."""
    return "".join(letter for letter in text if letter.isprintable()).strip()


def some(names: list[str]) -> str:
    """Return the names for a note, which lists the first LISTED of them."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def site_name(label: str) -> str:
    """Return a node's label as a site's name: small ASCII letters, digits and dashes, a letter first, at most 15.

    What follows the label's first comma is left out. A name without a letter first, and a reserved one, gets `site-`.
    `Miami, Florida` → `miami`, `San José` → `san-jose`, `1` → `site-1`, `London Docklands` → `london-dockland`.
    """
    plain = unicodedata.normalize("NFKD", label.partition(",")[0]).encode("ascii", "ignore").decode()
    name = _fitted(re.sub(r"[^a-z0-9]+", "-", plain.lower()))
    if not name or not name[0].isalpha() or RESERVED.fullmatch(name):
        name = _fitted(f"site-{name}")
    return name


def network_name(stem: str) -> str:
    """Return a file's name as a network's name: `Poland` → `poland`, `my_net` → `my-net`."""
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:MAX_NAME].strip("-") or "network"


def named(graph: SiteGraph) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return node → its site's name, and a note for each name that several labels become.

    The first of these nodes gets the name, the others get it with a number: Rocketfuel's `Santa+Clara,+CA389` and
    `Santa+Clara,+CA444` are `santa-clara` and `santa-clara-2`. The number skips names that other labels become.
    """
    wanted: dict[str, list[str]] = {}
    for node in graph.nodes:
        wanted.setdefault(site_name(graph.called(node)), []).append(node)
    names = {nodes[0]: name for name, nodes in wanted.items()}
    taken = set(wanted)
    notes = []
    for name, nodes in wanted.items():
        numbers = count(2)
        for node in nodes[1:]:
            names[node] = next(free for number in numbers if (free := _numbered(name, number)) not in taken)
            taken.add(names[node])
        if len(nodes) > 1:
            sites = some([f"{graph.called(node)!r} is {names[node]}" for node in nodes])
            notes.append(f"{len(nodes)} labels become the same name: {sites}.")
    return {node: names[node] for node in graph.nodes}, tuple(notes)


def _numbered(name: str, number: int) -> str:
    ending = f"-{number}"
    return name[: MAX_INTERFACE_NAME - len(ending)].rstrip("-") + ending


def _fitted(name: str) -> str:
    """Return a name cut to the length of an interface's, and unlike a worker's: `paris-w0` → `parisw0`."""
    return re.sub(r"-(w\d+)$", r"\1", name.strip("-")[:MAX_INTERFACE_NAME].strip("-"))
