"""Delays of links by their lengths, and the positions of nodes.

A link of a length has 0.0085 ms a kilometre and 4 ms, one way: the formula with which "Throughput-Optimal Topology
Design for Cross-Silo Federated Learning" (NeurIPS 2020) turns distances into latencies. Light in fibre takes 0.0049 ms
a kilometre; the rest is detours and equipment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from testbed.spec.graph.site_graph import Position, SiteGraph

MS_PER_KM, MS_AT_ALL = 0.0085, 4.0

#: The mean radius of the Earth.
EARTH_KM = 6371.0


def delay_ms(km: float) -> float:
    """Return the delay of a link of this length, one way."""
    return MS_PER_KM * km + MS_AT_ALL


def great_circle_km(a: Position, b: Position) -> float:
    """Return the distance between two points on the Earth (haversine)."""
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
