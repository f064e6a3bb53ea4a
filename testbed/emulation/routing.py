"""Which way packets go between sites: shortest paths over the configured links. Pure.

Traces never reroute, because routers do not see rates; a link going down or up and a network swap do.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from testbed.link import LinkState, link_name
from testbed.spec.topology import Routing, Topology


def _cost(routing: Routing, state: LinkState) -> float:
    """A link's cost. Delay has a millisecond added, so that zero-delay links do not make detours free."""
    if routing == "delay":
        return state.delay_s + 1e-3
    if routing == "inverse-rate":
        return 1 / state.rate_bps
    return 1.0


@dataclass(frozen=True)
class Routes:
    """Each ordered pair of sites that can reach each other → the sites along the way, both ends included."""

    paths: Mapping[tuple[str, str], tuple[str, ...]]

    @classmethod
    def over(cls, topology: Topology, down: Set[str] = frozenset()) -> Routes:
        """Shortest paths (Dijkstra) by the topology's metric, without the links named in `down`.

        Ties are broken by the order of the file, so the same file gives the same routes. The search runs backward
        from each target: what it finds is a tree, so that every router along a path agrees on the rest of it.
        """
        backward = nx.DiGraph()
        backward.add_nodes_from(topology.sites)
        for link in topology.links.values():
            if link.name not in down:
                backward.add_edge(link.target, link.source, cost=_cost(topology.routing, link.state))
        paths = {}
        for target in topology.sites:
            for source, path in nx.single_source_dijkstra_path(backward, target, weight="cost").items():
                if source != target:
                    paths[source, target] = tuple(reversed(path))
        return cls(paths)

    def next_hops(self, site: str) -> dict[str, str]:
        """Destination site → the neighbour that `site`'s router hands packets to."""
        return {target: path[1] for (source, target), path in self.paths.items() if source == site}

    def links(self, source: str, target: str) -> tuple[str, ...]:
        """The WAN links from one site to another, in order; none inside a site. KeyError when unreachable."""
        if source == target:
            return ()
        path = self.paths[source, target]
        return tuple(link_name(a, b) for a, b in pairwise(path))
