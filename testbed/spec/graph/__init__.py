"""Imports graphs and round-trip matrices of networks as topologies: nodes become sites, edges become links.

    file → markup (GML, GraphML) or matrix (CSV) → SiteGraph → its largest component → names, delays → topology file

If a file lacks a value, a note in the terminal and in the topology file says what was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from testbed.atomic_file import write_text
from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.links import MS_AT_ALL, MS_PER_KM, Defaults, GraphLink, links_of
from testbed.spec.graph.markup import read_gml, read_graphml
from testbed.spec.graph.matrix import read_matrix
from testbed.spec.graph.site_graph import GraphNode, SiteGraph, named, network_name, printable
from testbed.spec.load import MOST_BYTES, parse_yaml
from testbed.spec.topology import MAX_LABEL, MAX_SITES, Topology
from testbed.trace.text import unpacked_name

READERS: dict[str, Callable[[Path], SiteGraph]] = {
    ".gml": read_gml,
    ".graphml": read_graphml,
    ".csv": read_matrix,
}


@dataclass(frozen=True, slots=True)
class Imported:
    """A topology that was written from a graph."""

    topology: Topology
    #: The choices where the graph left something open.
    notes: tuple[str, ...]


def read_graph(file: Path) -> SiteGraph:
    """Return the nodes and edges in a GML, GraphML or CSV file. SpecError: it is none of these, or has no edge."""
    reader = READERS.get(unpacked_name(file).suffix.lower())
    if reader is None:
        rule = f"the file's name ends with none of {', '.join(READERS)}"
        raise SpecError(file, [Fault("file", rule, "a graph in GML or GraphML, or a matrix of round trips in CSV")])
    graph = reader(file)
    if not graph.edges:
        raise SpecError(file, [Fault("edges", "no edge joins two nodes", "a graph with an edge between two nodes")])
    return graph


def import_graph(
    file: Path,
    target: Path,
    defaults: Defaults,
    workers: int = 1,
    strict: bool = False,
    comments: list[str] | None = None,
) -> Imported:
    """Write a graph as a topology.

    Args:
        file: The graph.
        target: The topology's file, whose name gives the network's: `Poland.yaml` has the network `poland`.
        defaults: The rate and the delay of edges for which the graph has none.
        workers: How many workers each site has.
        strict: Refuse a graph of several components; by default the largest is taken.
        comments: The first lines of the topology; by default they say where it is from, and the notes.

    Raises:
        SpecError: The graph can't be read, or makes no topology; then nothing is written.
    """
    graph, notes = read_graph(file).largest_component(file, strict)
    if len(graph.nodes) > MAX_SITES:
        raise SpecError(
            file, [Fault("nodes", f"the graph has {len(graph.nodes)} connected nodes", f"at most {MAX_SITES}")]
        )
    names, repeated = named(graph)
    links, unsaid = links_of(graph, file, defaults)
    notes = (*notes, *repeated, *unsaid)
    made_of = f"Made of {printable(file.name)}; delays are {MS_PER_KM} ms a kilometre and {MS_AT_ALL:g} ms, one way."
    if unpacked_name(file).suffix.lower() == ".csv":
        made_of = f"Made of {printable(file.name)}; delays are half its round trips."
    text = topology_text(network_name(target.stem), graph, names, links, workers, comments or [made_of, *notes])
    return Imported(write_topology(target, text, file), notes)


#: Texts that need no quotes in YAML, except the words in NO_WORDS.
PLAIN = re.compile(r"[a-z][a-z0-9-]*")
NO_WORDS = ("no", "off", "on", "yes", "null", "true", "false", "y", "n")


def write_topology(target: Path, text: str, source: Path | None = None) -> Topology:
    """Write the text of a topology file, and return its topology.

    SpecError: the text is no topology file, or is too long for one (the error then names `source`, if given); nothing
    is written.
    """
    if len(text.encode()) > MOST_BYTES:
        rule = f"the graph makes a topology file of over {MOST_BYTES / 2**20:g} MiB, which no command reads"
        remedy = "fewer nodes or edges; in a matrix, empty cells where no link is wanted"
        raise SpecError(source or target, [Fault("edges", rule, remedy)])
    made = Topology.from_value(parse_yaml(text), target)
    write_text(target, text)
    return made


def topology_text(
    name: str,
    graph: SiteGraph,
    names: Mapping[str, str],
    links: Sequence[GraphLink],
    workers: int,
    comments: Sequence[str],
) -> str:
    """Return a topology file of these links, with `workers` at each site; `names` maps nodes to their sites' names."""
    lines = [*(f"# {comment}" for comment in comments), f"name: {_word(name)}", "sites:"]
    for node in dict.fromkeys(end for link in links for end in (link.a, link.b)):
        lines.append(f"  {_word(names[node])}: {{workers: {workers}{_place(graph.nodes[node])}}}")
    lines.append("links:")
    for link in links:
        ends = f"{_word(names[link.a])}, {_word(names[link.b])}"
        more = f", jitter: {link.jitter_ms:.6g}ms" if link.jitter_ms else ""
        more += f", loss: {link.loss * 100:.6g}%" if link.loss else ""
        lines.append(
            f"  - {{between: [{ends}], rate: {link.rate_bps / 1e6:g}mbit, delay: {link.delay_ms:.6g}ms{more}}}"
        )
    return "".join(f"{line}\n" for line in lines)


def _place(node: GraphNode) -> str:
    """Return the YAML of a site's label and map position, in degrees: six decimals are a tenth of a metre."""
    label = f", label: {_quoted(node.label[:MAX_LABEL])}" if node.label else ""
    if node.position is None:
        return label
    latitude, longitude = (f"{degrees:.6f}".rstrip("0").rstrip(".") for degrees in node.position)
    return f"{label}, position: [{latitude}, {longitude}]"


def _word(name: str) -> str:
    """Return a name that YAML reads back as it is: `no` is Norway, not false, and `007` is no number."""
    return name if PLAIN.fullmatch(name) and name not in NO_WORDS else _quoted(name)


def _quoted(text: str) -> str:
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf"))).strip()


__all__ = ["Defaults", "Imported", "import_graph", "read_graph", "topology_text", "write_topology"]
