"""Graphs in GML and GraphML, which the Internet Topology Zoo and graph tools write. networkx reads both.

Values may have units (`latency "110 ms"`, `capacity "10 Gbit/s"`, `Latitude "12.0 S"`). A value without a unit is in
the unit of its attribute, unless that is not possible: then it is refused, with its line.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers.expat import ExpatError, ParserCreate

import networkx as nx

from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.links import great_circle_km
from testbed.spec.graph.site_graph import GraphEdge, GraphNode, Position, SiteGraph, printable
from testbed.spec.units import LEAST_LINK_BPS, MOST_DELAY_S
from testbed.trace.quantity import (
    LENGTHS_KM,
    PERCENT,
    RATE_UNIT,
    TIMES_MS,
    QuantityError,
    degrees,
    doubtful_round_trips,
    in_units,
    is_unknown,
    rate_bps,
    split_quantity,
)
from testbed.trace.text import bytes_of, decoded, kind_of, unpacked_name

#: The longest file, which takes a minute. The largest file in the Topology Zoo has 0.9 MB.
MOST_BYTES = 16 * 2**20

#: Names of a node's label, in the order in which they are looked for: igraph's and Cytoscape's is `name`.
LABELS = ("label", "name", "Label", "Name")

#: Names of edge attributes, in the order in which they are looked for; capitals do not matter. Without a unit delays
#: are in ms, one way, round trips in ms, lengths in km, capacities in bit/s.
DELAYS = ("latency", "delay")
ROUND_TRIPS = ("rtt", "round_trip", "roundtrip")
LENGTHS = ("distance", "length", "dist", "km")
CAPACITIES = ("capacity", "LinkSpeedRaw", "bandwidth", "bw", "rate")
LOSSES = ("packet_loss", "loss")
JITTERS = ("jitter",)
EDGE_NAMES = (*DELAYS, *ROUND_TRIPS, *LENGTHS, *CAPACITIES, *LOSSES, *JITTERS)
#: Edge attributes without a quantity of the link: identifiers, and the Topology Zoo's attributes beside `LinkSpeedRaw`.
NOT_OF_LINKS = frozenset({"id", "key", "uid", "source", "target"})
ZOO = "Link"

#: Names of node attributes, in degrees.
LATITUDES = ("Latitude", "latitude", "lat")
LONGITUDES = ("Longitude", "longitude", "lon", "lng")
#: Groups of synonyms: a value under one name replaces a GraphML default under another name of its group.
SAME = (LABELS, LATITUDES, LONGITUDES, (*DELAYS, *ROUND_TRIPS), LENGTHS, (*CAPACITIES, "LinkSpeed"), LOSSES, JITTERS)
#: Shadow's rates of a host's own interface.
HOST_RATES = ("host_bandwidth_down", "host_bandwidth_up")

#: The speed of light in vacuum, and the tolerance for the distance between two cities: a factor, and km.
LIGHT_KM_PER_MS = 299.792458
NEAR, CITY_KM = 0.9, 100.0
#: The greatest length: the longest cable system has 45,000 km.
MOST_KM = 50_000.0

#: The greatest rate, a petabit: ten times what the largest fibre cable carries.
MOST_BPS = 1e15

#: A topology's file has six digits of a loss: a greater one is written as 100%.
MOST_LOSS = 1 - 5e-7

#: A loss without a unit from this share of packets on gets a note: few networks lose that much, and the value may be
#: meant in percent.
GREAT_LOSS = 0.1

#: The errors of networkx's readers for a file whose content does not match its name; XML's ParseError is a SyntaxError.
UNREADABLE = (nx.NetworkXException, ValueError, SyntaxError, LookupError, TypeError, AttributeError, RecursionError)

#: The start of the graph in a GML file; and its nodes and edges, outside of texts and comments.
GML_GRAPH = re.compile(r"^\s*graph\s*\[", re.MULTILINE)
GML_PART = re.compile(r'"[^"]*"|#[^\n]*|\b(node|edge)\s*\[')
#: The attribute that gets the line of a node or an edge.
LINE = "testbedline"

#: Reads a value: returns its number in the base unit, and whether the value has a unit of its own.
_Read = Callable[[Any], tuple[float, bool]]


@dataclass(frozen=True, slots=True)
class _Quantity:
    """The number in an attribute of a graph's node or edge; in km, ms, bit/s or percent if its unit is written."""

    name: str
    value: float
    #: True if the unit is written.
    has_unit: bool


def read_gml(file: Path) -> SiteGraph:
    """Return the graph in a GML file. SpecError names the line that can't be read."""
    data = _bytes(file)
    try:
        text = decoded(data)
    except ValueError:
        text = data.decode("iso-8859-1")  # GML's own specification allows this encoding
    # networkx refuses several of the Zoo's files, which have parallel edges and do not declare them.
    text = GML_GRAPH.sub(lambda begin: f"{begin[0]} multigraph 1 ", text, count=1)
    try:
        graph = nx.parse_gml(_with_lines(text), label="id")
    except UNREADABLE as error:
        raise _no_graph(file, error) from None
    return _Reader(file).site_graph(graph)


def _with_lines(text: str) -> str:
    ends = [end.start() for end in re.finditer("\n", text)]

    def begun(match: re.Match[str]) -> str:
        return f"{match[0]} {LINE} {bisect_left(ends, match.start()) + 1} " if match[1] else match[0]

    return GML_PART.sub(begun, text)


def read_graphml(file: Path) -> SiteGraph:
    """Return the graph in a GraphML file, with yEd's labels. SpecError names the line that can't be read."""
    data = _bytes(file)
    try:
        graph = nx.read_graphml(BytesIO(data), force_multigraph=True)
    except UNREADABLE as error:
        raise _no_graph(file, error, _quoted_line(data, str(error))) from None
    nodes, edges = _xml_lines(data)
    defaults = _xml_defaults(data)
    for ends, (line, *_) in edges.items():
        if missing := sorted(ends - nodes.keys()):  # networkx makes such a node
            rule = f"the edge's end {printable(missing[0])!r} is no node of the file"
            raise SpecError(file, [Fault(f"line {line}", rule, "the id of a node")])
    for node, its in graph.nodes(data=True):
        its |= {**_not_said(defaults["node"], its), LINE: nodes.get(str(node))}
    for source, target, its in graph.edges(data=True):
        lines = edges.get(frozenset((str(source), str(target))))
        its |= {**_not_said(defaults["edge"], its), LINE: lines.pop(0) if lines else None}
    return _Reader(file).site_graph(graph)


def _quoted_line(data: bytes, words: str) -> int | None:
    quoted = re.search(r"'([^']+)'$", words)
    place = data.find(f">{quoted[1]}<".encode()) if quoted else -1
    return None if place < 0 else data.count(b"\n", 0, place) + 1


def _xml_lines(data: bytes) -> tuple[dict[str, int], dict[frozenset[str], list[int]]]:
    """Return the line of each node by its id, and the lines of edges by their two ends, whichever is the source."""
    nodes: dict[str, int] = {}
    edges: dict[frozenset[str], list[int]] = {}
    parser = ParserCreate()

    def begin(tag: str, attributes: dict[str, str]) -> None:
        kind = tag.rpartition(":")[2]
        if kind == "node" and "id" in attributes:
            nodes[attributes["id"]] = parser.CurrentLineNumber
        elif kind == "edge":
            ends = frozenset((attributes.get("source", ""), attributes.get("target", "")))
            edges.setdefault(ends, []).append(parser.CurrentLineNumber)

    parser.StartElementHandler = begin
    with suppress(ExpatError):
        parser.Parse(data, True)
    return nodes, edges


def _xml_defaults(data: bytes) -> dict[str, dict[str, str]]:
    """Return the values that nodes and edges have where the file gives none, by attribute.

    networkx keeps one default of each kind, and gives it to no node and no edge.
    """
    defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
    for key in ElementTree.fromstring(data).iterfind("{*}key"):
        text = key.findtext("{*}default", "").strip()
        for kind in defaults:
            if text and key.get("for", "all") in (kind, "all"):
                defaults[kind][key.get("attr.name", key.get("id", ""))] = text
    return defaults


def _not_said(defaults: Mapping[str, str], own: Mapping[str, Any]) -> dict[str, str]:
    """Return the defaults for which a node or an edge has no value of its own, by this name or another of the same."""
    if not defaults:
        return {}
    known = [name for name, value in own.items() if not is_unknown(value)]
    said = [names for names in SAME if any(_is_of(name, names) for name in known)]
    return {
        name: value
        for name, value in defaults.items()
        if name not in own and not any(_is_of(name, names) for names in said)
    }


def _bytes(file: Path) -> bytes:
    try:
        data = bytes_of(file, MOST_BYTES)
    except ValueError as error:
        remedy = "a graph of some thousand nodes and edges at most"
        raise SpecError(file, [Fault("file", str(error).replace("it is", "the file is", 1), remedy)]) from None
    except OSError as error:
        raise SpecError(file, [Fault("file", f"the file can't be read: {error}", "the path of a graph")]) from None
    if kind := kind_of(data):
        raise SpecError(file, [Fault("file", f"the file is {kind}", "a graph in GML or GraphML")])
    return data


def _no_graph(file: Path, error: Exception, line: int | None = None) -> SpecError:
    remedy = f"a graph that networkx reads as {'GML' if unpacked_name(file).suffix.lower() == '.gml' else 'GraphML'}"
    field = "file" if line is None else f"line {line}"
    return SpecError(file, [Fault(field, f"the graph can't be read: {str(error)[:200]}", remedy)])


class _Reader:
    """Makes a SiteGraph of the graph that networkx read in a file. Each value is read, or refused, or noted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._noted: Counter[str] = Counter()
        self._without_unit: list[float] = []

    def site_graph(self, graph: Any) -> SiteGraph:
        """Return the sites and edges of the graph. SpecError names the line and the attribute that can't be read."""
        nodes = {str(node): self._node(node, its) for node, its in graph.nodes(data=True)}
        names = {node: str(node) for node in graph}  # an edge may name node 1 as 1.0, which is equal
        edges = tuple(
            self._edge(names[source], names[target], its, nodes)
            for source, target, its in graph.edges(data=True)
            if source != target
        )
        if doubt := doubtful_round_trips(2 * each for each in self._without_unit if each <= MOST_DELAY_S * 1e3):
            remedy = 'delays with their unit, such as `latency "110 ms"`'
            raise SpecError(self._file, [Fault("edges", f"the delays have no unit, and {doubt}", remedy)])
        notes = (f"{note} {count} {'node' if '`host_' in note else 'edge'}s." for note, count in self._noted.items())
        return SiteGraph(nodes, edges, tuple(notes))

    def _node(self, node: object, attributes: Mapping[str, Any]) -> GraphNode:
        labels = (printable(str(attributes.get(name, ""))) for name in LABELS)
        for name in HOST_RATES:
            if name in attributes:
                self._noted[f"Not taken over, since the workers of all sites have one `lan`: `{name}` of"] += 1
        return GraphNode(
            next(filter(None, labels), None), self._position(_place(f"node {node}", attributes), attributes)
        )

    def _position(self, field: str, attributes: Mapping[str, Any]) -> Position | None:
        found = []
        for names, directions, most in ((LATITUDES, "NS", 90), (LONGITUDES, "EW", 180)):
            said = self._first(field, attributes, names, partial(_angle, directions=directions))
            if said is not None and abs(said.value) > most:
                remedy = f"degrees, from {-most} to {most}"
                raise SpecError(self._file, [Fault(field, f"its {said.name} is {said.value:g}", remedy)])
            found.append(said)
        latitude, longitude = found
        return None if latitude is None or longitude is None else (latitude.value, longitude.value)

    def _edge(
        self, source: str, target: str, attributes: Mapping[str, Any], nodes: Mapping[str, GraphNode]
    ) -> GraphEdge:
        place = _place(f"edge {source} to {target}", attributes)
        km = self._quantity(place, attributes, LENGTHS, lambda value: in_units(value, LENGTHS_KM), "km")
        delay, ways = self._quantity(place, attributes, DELAYS, lambda value: in_units(value, TIMES_MS), "ms"), 1
        if delay is None:
            ways = 2
            delay = self._quantity(place, attributes, ROUND_TRIPS, lambda value: in_units(value, TIMES_MS), "ms")
        rate = self._rate(place, attributes)
        a, b = nodes[source].position, nodes[target].position
        self._check_distance(place, km, delay, ways, 0.0 if a is None or b is None else great_circle_km(a, b))
        if delay is not None and not delay.has_unit:
            self._without_unit.append(delay.value / ways)
        self._note_unread(attributes, rate is not None)
        return GraphEdge(
            source,
            target,
            km=None if km is None else km.value,
            delay_ms=None if delay is None else delay.value / ways,
            rate_bps=rate,
            jitter_ms=self._jitter(place, attributes),
            loss=self._loss(place, attributes),
            place=place,
        )

    def _note_unread(self, attributes: Mapping[str, Any], has_rate: bool) -> None:
        for name, value in attributes.items():
            known = name == LINE or name.lower() in NOT_OF_LINKS or (has_rate and name.startswith(ZOO))
            if known or _is_of(name, EDGE_NAMES) or is_unknown(value):
                continue
            if _is_quantity(value):
                self._noted[f"Not read: `{printable(name)}` of"] += 1

    def _rate(self, place: str, attributes: Mapping[str, Any]) -> float | None:
        """Return the edge's rate in bit/s. `LinkSpeedRaw` counts bit/s (Topology Zoo), `bw` Mbit/s (Mininet)."""
        said = self._quantity(place, attributes, CAPACITIES, rate_bps, "bit/s")
        if said is None and not is_unknown(attributes.get("LinkSpeed")) and attributes.get("LinkSpeedUnits"):
            speed = {"LinkSpeed": f"{attributes['LinkSpeed']}{attributes['LinkSpeedUnits']}"}
            said = self._quantity(place, speed, ("LinkSpeed",), rate_bps, "bit/s")
        if said is not None and said.value > MOST_BPS:
            rule = f"its {said.name} is {said.value:g} bit/s, which no cable carries"
            raise SpecError(self._file, [Fault(place, rule, "a rate with its unit, such as '10 Gbit/s'")])
        if said is None or said.has_unit or said.name.lower() == "linkspeedraw":
            return None if said is None else said.value
        if said.name.lower() == "bw":
            self._noted["Read as Mbit/s, as Mininet has it: `bw` of"] += 1
            return said.value * 1e6
        if said.name.lower() == "capacity" and said.value >= LEAST_LINK_BPS:
            return said.value
        rule = f"its {said.name} is {said.value:g}, without a unit"
        raise SpecError(self._file, [Fault(place, rule, "a rate with its unit, such as '10 Gbit/s'")])

    def _jitter(self, place: str, attributes: Mapping[str, Any]) -> float | None:
        said = self._quantity(place, attributes, JITTERS, lambda value: in_units(value, TIMES_MS), "ms")
        if said is not None and said.has_unit and said.value > MOST_DELAY_S * 1e3:
            rule = f"its {said.name} is {said.value:g} ms"
            raise SpecError(self._file, [Fault(place, rule, f"{MOST_DELAY_S:g} s at most")])
        if said is None or said.has_unit:
            return None if said is None else said.value
        self._noted[f"Not taken over, since it has no unit: `{said.name}` of"] += 1
        return None

    def _loss(self, place: str, attributes: Mapping[str, Any]) -> float | None:
        """Return the share of packets that the edge loses, from 0 to 1; None if it has no value, or one without a unit.

        Shadow's `packet_loss` is a share and needs no unit. A great one is noted: it may have been meant in percent.
        """
        said = self._quantity(place, attributes, LOSSES, lambda value: in_units(value, PERCENT), "%")
        if said is None:
            return None
        if not said.has_unit and said.name.lower() != "packet_loss":
            self._noted[f"Not taken over, since it has no unit: `{said.name}` of"] += 1
            return None
        if said.value >= MOST_LOSS:
            lost = "which is over 100%" if said.value > 1 else "so that every packet is lost"
            rule = f"its {said.name} is {said.value:g}, {lost}"
            remedy = "a share below 1, a percentage such as '1%', or no edge where nothing arrives"
            raise SpecError(self._file, [Fault(place, rule, remedy)])
        if not said.has_unit and said.value >= GREAT_LOSS:
            self._noted[f"Read as a share of at least {GREAT_LOSS:.0%}, as Shadow has it: `{said.name}` of"] += 1
        return said.value

    def _check_distance(
        self, place: str, km: _Quantity | None, delay: _Quantity | None, ways: int, apart_km: float
    ) -> None:
        """Refuse a length without a unit that can't be in km, or a delay that can't be in ms over this distance.

        `delay` covers `ways` directions, 2 for a round trip. `apart_km` is 0 if the distance of the ends is not known.
        """
        if km is not None and not km.has_unit and km.value > MOST_KM:
            rule = f"its {km.name} is {km.value:g}, and no cable is that many km long"
            raise SpecError(self._file, [Fault(place, rule, "a length with its unit, such as '344 km'")])
        least_km = ways * (NEAR * apart_km - CITY_KM)
        if delay is not None and not delay.has_unit and delay.value * LIGHT_KM_PER_MS < least_km:
            rule = f"its {delay.name} is {delay.value:g}, but light needs more ms for a distance of {apart_km:.0f} km"
            raise SpecError(self._file, [Fault(place, rule, f"a time with its unit, such as '{delay.value:g} s'")])

    def _quantity(
        self, place: str, attributes: Mapping[str, Any], names: tuple[str, ...], read: _Read, unit: str
    ) -> _Quantity | None:
        """Return the first of these attributes that is known. SpecError where it is negative, or a capacity of 0."""
        said = self._first(place, attributes, names, read)
        if said is not None and (said.value < 0 or (said.value == 0 and names is CAPACITIES)):
            remedy = f"{'more than 0' if names is CAPACITIES else '0 or more'} {unit}, or leave it out"
            raise SpecError(self._file, [Fault(place, f"its {said.name} is {said.value:g}", remedy)])
        return said

    def _first(
        self, place: str, attributes: Mapping[str, Any], names: tuple[str, ...], read: _Read
    ) -> _Quantity | None:
        for name in names:
            for key, value, written in _named(attributes, name, read):
                if is_unknown(value):
                    continue
                try:
                    return _Quantity(key, *read(written))
                except QuantityError as error:
                    remedy = "a number with its unit, such as '110 ms', '10 Gbit/s', '344 km' or '12.0 S'"
                    shown = f"its {key} {str(value)[:40]!r} {error}"
                    raise SpecError(self._file, [Fault(place, shown, remedy)]) from None
        return None


def _named(attributes: Mapping[str, Any], name: str, read: _Read) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value, and value with unit of the attributes of this name, and of those such as `latency_ms`."""
    if name in attributes:
        yield name, attributes[name], attributes[name]
    for key, value in attributes.items():
        unit = _unit_after(key, name)
        if unit == "" and key != name:
            yield key, value, value
        elif unit:
            with suppress(QuantityError):
                read(f"1 {unit}")
                yield key, value, _with_unit(value, unit)


def _unit_after(key: str, name: str) -> str | None:
    """Return the unit in an attribute's name after `name`: `ms` of `latency_ms`, `Latency (ms)` and `latencyMs`.

    Empty where the attribute has this name alone; None where it has another name, such as `delays`.
    """
    rest = key[len(name) :]
    if key[: len(name)].lower() != name.lower():
        return None
    if rest[:1].isalpha() and (key.isupper() or not rest[0].isupper()):
        return None
    unit = rest.strip(" _-()[]")
    return None if unit.lower() == "min" else unit  # `rtt_min` is the least of several round trips, not minutes


def _is_of(key: str, names: Iterable[str]) -> bool:
    """Return whether an attribute's name is one of these, or one of these with a unit that is known."""
    units = ("", *TIMES_MS, *LENGTHS_KM, *PERCENT)
    found = [unit for name in names if (unit := _unit_after(key, name)) is not None]
    return any(unit.lower() in units or RATE_UNIT.fullmatch(unit) for unit in found)


def _is_quantity(value: object) -> bool:
    readers: list[_Read] = [partial(in_units, units=each) for each in (TIMES_MS, LENGTHS_KM, PERCENT)]
    for read in (*readers, rate_bps):
        with suppress(QuantityError):
            read(value)
            return True
    return False


def _with_unit(value: Any, unit: str) -> Any:
    """Return a value with the unit in its attribute's name, unless the value has a unit itself."""
    try:
        return value if split_quantity(value)[1] else f"{value} {unit}"
    except QuantityError:
        return value


def _angle(value: object, directions: str) -> tuple[float, bool]:
    return degrees(value, directions), True


def _place(part: str, attributes: Mapping[str, Any]) -> str:
    line = attributes.get(LINE)
    return part if line is None else f"line {line}, {part}"
