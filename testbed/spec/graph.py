"""Networks drawn as graphs (GML, GraphML) into topologies: sites of the nodes, links of the edges.

The delay of a link follows from its length: 0.0085 ms a kilometre and 4 ms, one way, the formula with which
"Throughput-Optimal Topology Design for Cross-Silo Federated Learning" (NeurIPS 2020) turns distances into latencies.
Light in fibre takes 0.0049 ms a kilometre; the rest is detours and equipment.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx

from testbed.atomic_file import write_text
from testbed.spec.errors import Fault, SpecError
from testbed.spec.load import parse_yaml
from testbed.spec.topology import MAX_INTERFACE_NAME, RESERVED, Topology

MS_PER_KM, MS_AT_ALL = 0.0085, 4.0

#: Mean radius.
EARTH_KM = 6371.0

#: Names of edge attributes, in the order they are looked for. Lengths are in km, capacities in bit/s.
LENGTHS = ("distance", "length", "dist", "km")
CAPACITIES = ("capacity", "LinkSpeedRaw")

#: Of node attributes: (latitude, longitude) in degrees.
COORDINATES = (("Latitude", "Longitude"), ("latitude", "longitude"), ("lat", "lon"), ("lat", "lng"))

#: What networkx's readers raise at a file that is not what it claims to be; XML's ParseError is a SyntaxError.
_UNREADABLE = (nx.NetworkXException, ValueError, SyntaxError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class GraphLink:
    """An edge between two sites: its one-way delay, and its rate where the file or the caller says one."""

    a: str
    b: str
    delay_ms: float
    rate_bps: float


def delay_ms(km: float) -> float:
    """One way over a link of this length."""
    return MS_PER_KM * km + MS_AT_ALL


def great_circle_km(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Between two points given by latitude and longitude in degrees (haversine)."""
    (lat_a, lon_a), (lat_b, lon_b) = (tuple(map(math.radians, point)) for point in (a, b))
    half = math.sin((lat_b - lat_a) / 2) ** 2
    half += math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * EARTH_KM * math.asin(math.sqrt(min(half, 1.0)))


def read_graph(file: Path, rate_bps: float) -> list[GraphLink]:
    """The links in a GML (`.gml`) or GraphML (`.graphml`) file, each pair of nodes once, the shorter edge of several.

    A link is as long as its edge says (`distance`, `length`, `dist` or `km`), else as far as its ends' coordinates
    are apart; its rate is the edge's `capacity` or `LinkSpeedRaw`, else `rate_bps`. Direction is not looked at.
    SpecError when the file is not readable, has no edge, or an edge has no length.
    """
    graph = _graph(file)
    names = _site_names(graph, file)
    found: dict[frozenset[str], GraphLink] = {}
    for source, target, edge in graph.edges(data=True):
        if source == target:
            continue
        km = _length_km(graph, source, target, edge, file)
        rate = _first(edge, CAPACITIES)
        link = GraphLink(names[source], names[target], delay_ms(km), rate_bps if rate is None else rate)
        pair = frozenset((source, target))
        if pair not in found or link.delay_ms < found[pair].delay_ms:
            found[pair] = link
    if not found:
        raise SpecError(file, [Fault("edges", "there is none between two nodes", "a graph of at least two nodes")])
    return list(found.values())


def _graph(file: Path) -> Any:
    readers = {".gml": lambda: nx.read_gml(file, label="id"), ".graphml": lambda: nx.read_graphml(file)}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise SpecError(file, [Fault("file", "is named neither .gml nor .graphml", "a graph in one of these formats")])
    try:
        return reader()
    except OSError as error:
        raise SpecError(file, [Fault("file", f"cannot be read: {error.strerror}", "the path of a graph")]) from None
    except _UNREADABLE as error:
        remedy = "a file that networkx reads; one with parallel edges says so itself (GML: `multigraph 1`)"
        raise SpecError(file, [Fault("file", f"is no such graph: {str(error)[:200]}", remedy)]) from None


def _length_km(graph: Any, source: Any, target: Any, edge: Mapping[str, Any], file: Path) -> float:
    given = _first(edge, LENGTHS)
    if given is not None:
        return given
    ends = [_coordinates(graph.nodes[node]) for node in (source, target)]
    if ends[0] is None or ends[1] is None:
        remedy = f"an edge's {LENGTHS[0]} in km, or both nodes' {' and '.join(COORDINATES[0])} in degrees"
        raise SpecError(file, [Fault(f"edge {source} to {target}", "has no length and no coordinates", remedy)])
    return great_circle_km(ends[0], ends[1])


def _coordinates(node: Mapping[str, Any]) -> tuple[float, float] | None:
    for latitude, longitude in COORDINATES:
        point = _finite(node.get(latitude)), _finite(node.get(longitude))
        if point[0] is not None and point[1] is not None:
            return point[0], point[1]
    return None


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of the attributes that is a number, 0 or above."""
    values = (_finite(attributes.get(name)) for name in names)
    return next((value for value in values if value is not None and value >= 0), None)


def _finite(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _site_names(graph: Any, file: Path) -> dict[Any, str]:
    names: dict[Any, str] = {}
    taken: dict[str, Any] = {}
    for node, attributes in graph.nodes(data=True):
        label = str(attributes.get("label", node))
        name = site_name(label)
        if name in taken:
            rule = f"{label!r} becomes the site {name!r}, as {taken[name]!r} does"
            raise SpecError(
                file, [Fault(f"node {node}", rule, f"labels that differ within {MAX_INTERFACE_NAME} letters")]
            )
        names[node], taken[name] = name, label
    return names


def site_name(label: str) -> str:
    """A node's label as a site's name: up to its first comma, small ASCII letters and dashes, at most 15.

    `Miami, Florida` → `miami`, `San José` → `san-jose`, `1` → `site-1`, `London Docklands` → `london-dockland`.
    """
    plain = unicodedata.normalize("NFKD", label.partition(",")[0]).encode("ascii", "ignore").decode()
    name = _fitted(re.sub(r"[^a-z0-9]+", "-", plain.lower()))
    if not name or not name[0].isalpha() or RESERVED.fullmatch(name):
        name = _fitted(f"site-{name}")
    return name


def _fitted(name: str) -> str:
    """As long as an interface's name may be, and not a worker's: `paris-w0` → `parisw0`."""
    return re.sub(r"-(w\d+)$", r"\1", name.strip("-")[:MAX_INTERFACE_NAME].strip("-"))


def import_graph(
    file: Path, target: Path, rate_bps: float, workers: int, comments: list[str] | None = None
) -> Topology:
    """Write the graph as a topology named like the target file. SpecError when either is not what it must be."""
    links = read_graph(file, rate_bps)
    comments = comments or [
        f"Made of {file.name}; delays are {MS_PER_KM} ms a kilometre and {MS_AT_ALL:g} ms, one way."
    ]
    return write_topology(target, topology_text(target.stem, links, workers, comments))


def write_topology(target: Path, text: str) -> Topology:
    """Write the text of a topology file if it is one; SpecError otherwise, and nothing is written."""
    made = Topology.from_value(parse_yaml(text), target)
    write_text(target, text)
    return made


def topology_text(name: str, links: list[GraphLink], workers: int, comments: list[str]) -> str:
    """A topology file of these links, with as many workers at each site."""
    return "".join(f"{line}\n" for line in _lines(name, links, workers, comments))


def _lines(name: str, links: list[GraphLink], workers: int, comments: list[str]) -> Iterator[str]:
    yield from (f"# {comment}" for comment in comments)
    yield f"name: {name}"
    yield "sites:"
    for site in dict.fromkeys(site for link in links for site in (link.a, link.b)):
        yield f"  {_word(site)}: {{workers: {workers}}}"
    yield "links:"
    for link in links:
        ends = f"{_word(link.a)}, {_word(link.b)}"
        yield f"  - {{between: [{ends}], rate: {link.rate_bps / 1e6:g}mbit, delay: {link.delay_ms:.6g}ms}}"


def _word(name: str) -> str:
    """As YAML reads it back: `no` is Norway, not false."""
    return f'"{name}"' if name in {"no", "off", "on", "yes", "null", "true", "false", "y", "n"} else name
