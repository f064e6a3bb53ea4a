"""The links that a graph's edges become, and notes on the links that the graph leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.delay import delay_ms, great_circle_km, positions_of
from testbed.spec.graph.site_graph import GraphEdge, Position, SiteGraph, some
from testbed.spec.units import LEAST_LINK_BPS, MOST_DELAY_S, MOST_LINK_BPS, count


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
    """Return the links, one for each pair of nodes, and notes on what was chosen where the file leaves something open.

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
    notes = [
        *_of_parallel_edges(graph, len(edges)),
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
    """Return the edge's rate, or the nearest rate that a link can have."""
    rate = defaults.rate_bps if edge.rate_bps is None else edge.rate_bps
    return min(max(rate, LEAST_LINK_BPS), MOST_LINK_BPS)


def _of_parallel_edges(graph: SiteGraph, links: int) -> Iterator[str]:
    if more := len(graph.edges) - links:
        yield f"Left out, since another edge between the same nodes is as short: {more} of {len(graph.edges)} edges."


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
