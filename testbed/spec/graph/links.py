"""The links made of a graph's edges, and notes on the values that the graph lacks.

A link's one-way delay is 0.0085 ms a kilometre plus 4 ms: the formula with which "Throughput-Optimal Topology Design
for Cross-Silo Federated Learning" (NeurIPS 2020) turns distances into latencies. Light in fibre takes 0.0049 ms
a kilometre; the rest is detours and equipment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.site_graph import GraphEdge, Position, SiteGraph, some
from testbed.spec.units import LEAST_LINK_BPS, MOST_DELAY_S, MOST_LINK_BPS, count

MS_PER_KM, MS_AT_ALL = 0.0085, 4.0

#: The mean radius of the Earth.
EARTH_KM = 6371.0


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values of links for which the graph has none."""

    rate_bps: float
    #: One way; None makes an edge without a length and without positions an error.
    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class GraphLink:
    """A pair of links: between two nodes of the graph, and back."""

    a: str
    b: str
    delay_ms: float
    rate_bps: float
    jitter_ms: float | None = None
    loss: float | None = None


def links_of(graph: SiteGraph, file: Path, defaults: Defaults) -> tuple[list[GraphLink], tuple[str, ...]]:
    """Return the links, one for each pair of nodes, and notes on the values that were chosen because the file has none.

    A link has the delay of its edge, else that of the edge's length, else that of the distance between its ends, else
    the default. Of several edges between two nodes the shortest counts.

    Raises:
        SpecError: An edge has no delay, or one of over a minute.
    """
    positions, estimated = positions_of(graph)
    shortest: dict[frozenset[str], tuple[float, GraphEdge]] = {}
    for edge in graph.edges:
        pair, delay = frozenset((edge.source, edge.target)), _delay_ms(edge, graph, positions, defaults, file)
        if pair not in shortest or delay < shortest[pair][0]:
            shortest[pair] = delay, edge
    links = [
        GraphLink(edge.source, edge.target, delay, _rate_bps(edge, defaults), edge.jitter_ms, edge.loss)
        for delay, edge in shortest.values()
    ]
    edges = [edge for _, edge in shortest.values()]
    more = len(graph.edges) - len(edges)
    parallel = f"Left out, since another edge between the same nodes is as short: {more} of {len(graph.edges)} edges."
    notes = [
        *([parallel] if more else []),
        *_of_positions(graph, positions, estimated, [e for e in edges if e.delay_ms is None and e.km is None]),
        *_of_rates(edges, defaults),
    ]
    return links, tuple(notes)


def _delay_ms(
    edge: GraphEdge, graph: SiteGraph, positions: Mapping[str, Position], defaults: Defaults, file: Path
) -> float:
    field = edge.place or f"edge {edge.source} to {edge.target}"
    if edge.delay_ms is not None:
        delay = edge.delay_ms
    elif edge.km is not None:
        delay = delay_ms(edge.km)
    elif edge.source in positions and edge.target in positions:
        delay = delay_ms(great_circle_km(positions[edge.source], positions[edge.target]))
    elif defaults.delay_s is not None:
        delay = defaults.delay_s * 1e3
    else:
        ends = f"{graph.called(edge.source)} to {graph.called(edge.target)}"
        rule = f"the edge ({ends}) has no length, and its nodes have no coordinates"
        remedy = (
            "`distance` in km, `latency` in ms, or both nodes' `Latitude` and `Longitude`; or --delay 10ms for all such"
        )
        raise SpecError(file, [Fault(field, rule, remedy)])
    if delay > MOST_DELAY_S * 1e3:
        raise SpecError(file, [Fault(field, f"the delay is {delay:g} ms", f"{MOST_DELAY_S:g} s at most, one way")])
    return delay


def _rate_bps(edge: GraphEdge, defaults: Defaults) -> float:
    rate = defaults.rate_bps if edge.rate_bps is None else edge.rate_bps
    return min(max(rate, LEAST_LINK_BPS), MOST_LINK_BPS)


def _of_positions(
    graph: SiteGraph, positions: Mapping[str, Position], estimated: list[str], measured: list[GraphEdge]
) -> Iterator[str]:
    ends = {end for edge in measured for end in (edge.source, edge.target)}
    if names := [graph.called(node) for node in estimated if node in ends]:
        yield f"Without a position, and counted as being amid their neighbours: {some(names)}."
    if nowhere := sum(edge.source not in positions or edge.target not in positions for edge in measured):
        yield f"Without a length or positions, and with the delay that was asked for: {count(nowhere, 'link')}."


def _of_rates(edges: list[GraphEdge], defaults: Defaults) -> Iterator[str]:
    rates = [edge.rate_bps for edge in edges]
    if unsaid := rates.count(None):
        yield f"Without a rate, and with {defaults.rate_bps / 1e6:g} Mbit/s: {unsaid} of {len(edges)} links."
    if beyond := sum(rate is not None and not LEAST_LINK_BPS <= rate <= MOST_LINK_BPS for rate in rates):
        limits = f"{LEAST_LINK_BPS / 1e3:g} kbit/s to {MOST_LINK_BPS / 1e9:g} Gbit/s"
        yield f"With a rate that no link has here, and the nearest in {limits}: {beyond} of {len(edges)} links."


def delay_ms(km: float) -> float:
    """Return the one-way delay in ms of a link of `km` kilometres."""
    return MS_PER_KM * km + MS_AT_ALL


def great_circle_km(a: Position, b: Position) -> float:
    """Return the distance in km between two points on the Earth, given in degrees (haversine)."""
    (lat_a, lon_a), (lat_b, lon_b) = (tuple(map(math.radians, point)) for point in (a, b))
    half = math.sin((lat_b - lat_a) / 2) ** 2
    half += math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * EARTH_KM * math.asin(math.sqrt(min(half, 1.0)))


def midpoint(points: Iterable[Position]) -> Position:
    """Return the mean of points on the sphere: of their directions from its centre, so 180° is between 179° and -179°.

    The mean of points that cancel each other out has no meaning.
    """
    x = y = z = 0.0
    for latitude, longitude in points:
        lat, lon = math.radians(latitude), math.radians(longitude)
        x += math.cos(lat) * math.cos(lon)
        y += math.cos(lat) * math.sin(lon)
        z += math.sin(lat)
    return math.degrees(math.atan2(z, math.hypot(x, y))), math.degrees(math.atan2(y, x))


def positions_of(graph: SiteGraph) -> tuple[dict[str, Position], list[str]]:
    """Return the positions of nodes, and the nodes whose positions are estimated since the file has none for them.

    A node is estimated to be amid its neighbours of known positions; nodes next to known ones come first. Nodes that no
    path joins to a known one are in neither result.
    """
    known = {node: its.position for node, its in graph.nodes.items() if its.position is not None}
    neighbours: dict[str, set[str]] = {node: set() for node in graph.nodes}
    for edge in graph.edges:
        neighbours[edge.source].add(edge.target)
        neighbours[edge.target].add(edge.source)
    estimated: list[str] = []
    while True:
        amid = {
            node: midpoint(known[other] for other in sorted(neighbours[node]) if other in known)
            for node in graph.nodes
            if node not in known and not neighbours[node].isdisjoint(known)
        }
        if not amid:
            return known, estimated
        known |= amid
        estimated += amid
