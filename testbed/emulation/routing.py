"""Which way packets go between sites: shortest paths over the configured links. Pure.

Traces never reroute, because routers do not see rates; a link going down or up and a network swap do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
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
    """`toward[target]` is each site that reaches the target, nearest first → the neighbour that it hands packets to.

    A tree for each target, since every router along a path agrees on the rest of it: of 1,000 sites in a row it takes
    33 MB, where the paths themselves would take three gigabytes.
    """

    toward: Mapping[str, Mapping[str, str]]

    @classmethod
    def over(cls, topology: Topology, down: Set[str] = frozenset()) -> Routes:
        """Shortest paths (Dijkstra) by the topology's metric, without the links named in `down`.

        Ties are broken by the order of the file, so the same file gives the same routes. The search runs backward
        from each target: what it finds is a tree.
        """
        backward = nx.DiGraph()
        backward.add_nodes_from(topology.sites)
        for link in topology.links.values():
            if link.name not in down:
                backward.add_edge(link.target, link.source, cost=_cost(topology.routing, link.state))
        toward = {}
        for target in topology.sites:
            paths = nx.single_source_dijkstra_path(backward, target, weight="cost")
            near_first = sorted(paths.items(), key=lambda item: len(item[1]))
            toward[target] = {source: path[-2] for source, path in near_first if source != target}
        return cls(toward)

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """Each two sites, of which the first reaches the second; a path's rest comes before it."""
        return ((source, target) for target, sources in self.toward.items() for source in sources)

    def next_hop(self, source: str, target: str) -> str:
        """The neighbour to which `source` hands packets for another site. KeyError when that is unreachable."""
        return self.toward[target][source]

    def next_hops(self, site: str) -> dict[str, str]:
        """Destination site → the neighbour that `site`'s router hands packets to."""
        return {target: sources[site] for target, sources in self.toward.items() if site in sources}

    def path(self, source: str, target: str) -> tuple[str, ...]:
        """The sites along the way, both ends included. KeyError when unreachable."""
        sites = [source]
        while sites[-1] != target:
            sites.append(self.next_hop(sites[-1], target))
        return tuple(sites)

    def links(self, source: str, target: str) -> tuple[str, ...]:
        """The WAN links from one site to another, in order; none inside a site. KeyError when unreachable."""
        return tuple(link_name(a, b) for a, b in pairwise(self.path(source, target)))

    def reach(self, source: str, target: str) -> bool:
        """Whether packets get from one site to another."""
        return source == target or source in self.toward.get(target, {})
