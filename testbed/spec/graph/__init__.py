"""Networks that others drew or measured, as topologies: sites of the nodes, links of the edges.

    file → markup (GML, GraphML) or matrix (CSV) → SiteGraph → its largest component → names, delays → topology file

Where a file leaves something open, what was made of it is a note: a line in the terminal, and in the topology file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.delay import MS_AT_ALL, MS_PER_KM
from testbed.spec.graph.links import Defaults, links_of
from testbed.spec.graph.markup import read_gml, read_graphml
from testbed.spec.graph.matrix import read_matrix
from testbed.spec.graph.names import named, network_name
from testbed.spec.graph.site_graph import SiteGraph
from testbed.spec.graph.text import topology_text, write_topology
from testbed.spec.topology import MAX_SITES, Topology
from testbed.trace.text import unpacked_name

READERS: dict[str, Callable[[Path], SiteGraph]] = {
    ".gml": read_gml,
    ".graphml": read_graphml,
    ".csv": read_matrix,
}


@dataclass(frozen=True, slots=True)
class Imported:
    """The topology that was written, and what was made of what its source left open."""

    topology: Topology
    notes: tuple[str, ...]


def read_graph(file: Path) -> SiteGraph:
    """The nodes and edges in a GML, GraphML or CSV file. SpecError where it is none of these, or has no edge."""
    reader = READERS.get(unpacked_name(file).suffix.lower())
    if reader is None:
        rule = f"is named none of {', '.join(f'*{suffix}' for suffix in READERS)}"
        raise SpecError(file, [Fault("file", rule, "a graph in GML or GraphML, or a matrix of round trips in CSV")])
    graph = reader(file)
    if not graph.edges:
        raise SpecError(file, [Fault("edges", "there is none between two nodes", "a graph of at least two nodes")])
    return graph


def import_graph(
    file: Path,
    target: Path,
    defaults: Defaults,
    workers: int = 1,
    strict: bool = False,
    comments: list[str] | None = None,
) -> Imported:
    """Write the graph as a topology named like the target file, with as many workers at each site.

    `Poland.yaml` has the network `poland`. Of several components the largest is taken; under `strict` they are an
    error. The first lines of the topology are `comments`, or say where it is from, and the notes. SpecError when either
    file is not what it must be; then nothing is written.
    """
    graph, notes = read_graph(file).largest_component(file, strict)
    if len(graph.nodes) > MAX_SITES:
        raise SpecError(file, [Fault("nodes", f"{len(graph.nodes)} are connected", f"at most {MAX_SITES}")])
    names, repeated = named(graph)
    links, unsaid = links_of(graph, file, defaults)
    notes = (*notes, *repeated, *unsaid)
    made_of = f"Made of {file.name}; delays are {MS_PER_KM} ms a kilometre and {MS_AT_ALL:g} ms, one way."
    if unpacked_name(file).suffix.lower() == ".csv":
        made_of = f"Made of {file.name}; delays are half its round trips."
    text = topology_text(network_name(target.stem), graph, names, links, workers, comments or [made_of, *notes])
    return Imported(write_topology(target, text, file), notes)


__all__ = ["Defaults", "Imported", "import_graph", "read_graph"]
