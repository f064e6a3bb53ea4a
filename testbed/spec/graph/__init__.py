"""Networks that others drew or measured, as topologies: nodes become sites, edges become links.

    file → markup (GML, GraphML) or matrix (CSV) → SiteGraph → its largest component → names, delays → topology file

Where a file leaves something open, a note says what was chosen: a line in the terminal, and in the topology file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.links import MS_AT_ALL, MS_PER_KM, Defaults, links_of
from testbed.spec.graph.markup import read_gml, read_graphml
from testbed.spec.graph.matrix import read_matrix
from testbed.spec.graph.site_graph import SiteGraph, named, network_name
from testbed.spec.graph.topology_file import topology_text, write_topology
from testbed.spec.topology import MAX_SITES, Topology
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
    """Return the nodes and edges in a GML, GraphML or CSV file. SpecError where it is none of these, or has no edge."""
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
    made_of = f"Made of {file.name}; delays are {MS_PER_KM} ms a kilometre and {MS_AT_ALL:g} ms, one way."
    if unpacked_name(file).suffix.lower() == ".csv":
        made_of = f"Made of {file.name}; delays are half its round trips."
    text = topology_text(network_name(target.stem), graph, names, links, workers, comments or [made_of, *notes])
    return Imported(write_topology(target, text, file), notes)


__all__ = ["Defaults", "Imported", "import_graph", "read_graph"]
