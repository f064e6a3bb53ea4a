"""GML and GraphML, as the Internet Topology Zoo has its networks and graph tools write theirs; networkx reads both."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import networkx as nx

from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.site_graph import GraphEdge, GraphNode, Position, SiteGraph, printable

#: The largest file in the Topology Zoo has 0.9 MB. One of this size takes a minute.
MOST_BYTES = 16 * 2**20

#: Names of edge attributes, in the order in which they are looked for. Delays are in ms, one way, lengths in km,
#: capacities in bit/s.
DELAYS = ("latency", "delay")
LENGTHS = ("distance", "length", "dist", "km")
CAPACITIES = ("capacity", "LinkSpeedRaw")

#: Of node attributes, in degrees.
LATITUDES = ("Latitude", "latitude", "lat")
LONGITUDES = ("Longitude", "longitude", "lon", "lng")

#: What networkx's readers raise at a file that is not what it claims to be; XML's ParseError is a SyntaxError.
UNREADABLE = (nx.NetworkXException, ValueError, SyntaxError, LookupError, TypeError, AttributeError, RecursionError)

#: Where a GML file's graph begins.
GML_GRAPH = re.compile(r"^\s*graph\s*\[", re.MULTILINE)


def read_gml(file: Path) -> SiteGraph:
    """The graph in a GML file; SpecError says where it is none."""
    data = _bytes(file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")  # what GML's own specification says of letters beyond ASCII
    # Several of the Zoo's files have parallel edges without saying so, for which networkx refuses them.
    text = GML_GRAPH.sub(lambda begin: f"{begin[0]} multigraph 1 ", text, count=1)
    try:
        graph = nx.parse_gml(text, label="id")
    except UNREADABLE as error:
        raise _no_graph(file, error) from None
    return _site_graph(graph, file)


def read_graphml(file: Path) -> SiteGraph:
    """The graph in a GraphML file, of yEd's labels too; SpecError says where it is none."""
    data = _bytes(file)
    try:
        graph = nx.read_graphml(BytesIO(data), force_multigraph=True)
    except UNREADABLE as error:
        raise _no_graph(file, error) from None
    return _site_graph(graph, file)


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: no file can have such a name
        raise SpecError(file, [Fault("file", f"cannot be read: {error}", "the path of a graph")]) from None
    if len(data) > MOST_BYTES:
        rule = f"is longer than {MOST_BYTES / 2**20:g} MiB"
        raise SpecError(file, [Fault("file", rule, "a graph of some thousand nodes and edges at most")])
    return data


def _no_graph(file: Path, error: Exception) -> SpecError:
    remedy = f"a graph that networkx reads as {'GML' if file.suffix.lower() == '.gml' else 'GraphML'}"
    return SpecError(file, [Fault("file", f"is no such graph: {str(error)[:200]}", remedy)])


def _site_graph(graph: Any, file: Path) -> SiteGraph:
    nodes = {str(node): _node(node, its, file) for node, its in graph.nodes(data=True)}
    edges = (_edge(source, target, its, file) for source, target, its in graph.edges(data=True) if source != target)
    return SiteGraph(nodes, tuple(edges))


def _node(node: object, attributes: Mapping[str, Any], file: Path) -> GraphNode:
    label = printable(str(attributes.get("label", "")))
    return GraphNode(label or None, _position(f"node {node}", attributes, file))


def _position(field: str, attributes: Mapping[str, Any], file: Path) -> Position | None:
    latitude, longitude = _first(attributes, LATITUDES), _first(attributes, LONGITUDES)
    if latitude is None or longitude is None:
        return None
    for (name, degrees), most in ((latitude, 90), (longitude, 180)):
        if abs(degrees) > most:
            raise SpecError(file, [Fault(field, f"its {name} is {degrees:g}", f"degrees, from {-most} to {most}")])
    return latitude[1], longitude[1]


def _edge(source: object, target: object, attributes: Mapping[str, Any], file: Path) -> GraphEdge:
    said = []
    for names, unit in ((LENGTHS, "km"), (DELAYS, "ms"), (CAPACITIES, "bit/s")):
        found = _first(attributes, names)
        if found is not None and (found[1] < 0 or (found[1] == 0 and names is CAPACITIES)):
            name, value = found
            remedy = f"{'more than 0' if names is CAPACITIES else '0 or more'} {unit}, or leave it out"
            raise SpecError(file, [Fault(f"edge {source} to {target}", f"its {name} is {value:g}", remedy)])
        said.append(None if found is None else found[1])
    return GraphEdge(str(source), str(target), *said)


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, float] | None:
    """The first of the attributes that is a number, with its name."""
    return next(((name, number) for name in names if (number := _finite(attributes.get(name))) is not None), None)


def _finite(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
