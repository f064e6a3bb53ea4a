"""Routes between sites: shortest paths over the configured links. Pure.

A network swap changes routes, and so does a link that is taken down or up. Traces never do, because routers do not see
rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise

from testbed.link import LinkState, link_name
from testbed.spec.topology import Routing, Topology


def _cost(routing: Routing, state: LinkState) -> float:
    """Return a link's cost. A millisecond is added to delays, so that detours over zero-delay links are not free."""
    if routing == "delay":
        return state.delay_s + 1e-3
    if routing == "inverse-rate":
        return 1 / state.rate_bps
    return 1.0


@dataclass(frozen=True)
class Routes:
    """The routes of a network. `toward[target]` maps each site that reaches the target, nearest first, to its next hop.

    There is one tree for each target, because all routers along a path agree on the rest of it. For 1,000 sites in a
    row this takes 33 MB, where storing the paths would take three gigabytes.
    """

    toward: Mapping[str, Mapping[str, str]]

    @classmethod
    def over(cls, topology: Topology, down: Set[str] = frozenset()) -> Routes:
        """Return the shortest paths (Dijkstra) by the topology's metric, without the links in `down`.

        Ties are broken by the order of the file, so the same file gives the same routes. The search runs backward from
        each target, so its result is a tree.
        """
        backward: dict[str, list[tuple[str, float]]] = {site: [] for site in topology.sites}
        for link in topology.links.values():
            if link.name not in down:
                backward[link.target].append((link.source, _cost(topology.routing, link.state)))
        return cls({target: _tree(backward, target) for target in topology.sites})

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """The pairs (source, target) of sites that a path joins, each after the pair (next hop, target)."""
        return ((source, target) for target, sources in self.toward.items() for source in sources)

    def next_hop(self, source: str, target: str) -> str:
        """Return the neighbour to which `source` sends packets for `target`. Raises KeyError if it is unreachable."""
        return self.toward[target][source]

    def next_hops(self, site: str) -> dict[str, str]:
        """Return, for each destination site, the neighbour to which `site`'s router sends packets."""
        return {target: sources[site] for target, sources in self.toward.items() if site in sources}

    def path(self, source: str, target: str) -> tuple[str, ...]:
        """Return the sites on the way, both ends included. Raises KeyError if the target is unreachable."""
        sites = [source]
        while sites[-1] != target:
            sites.append(self.next_hop(sites[-1], target))
        return tuple(sites)

    def links(self, source: str, target: str) -> tuple[str, ...]:
        """Return the WAN links on the way in order; none inside a site. Raises KeyError if it is unreachable."""
        return tuple(link_name(a, b) for a, b in pairwise(self.path(source, target)))

    def reach(self, source: str, target: str) -> bool:
        """Return whether packets get from one site to another."""
        return source == target or source in self.toward.get(target, {})


def _tree(backward: Mapping[str, Sequence[tuple[str, float]]], target: str) -> dict[str, str]:
    """Return the next hop of each site that reaches the target, sites with the fewest hops first (Dijkstra).

    It keeps predecessors alone: networkx keeps the path of each site, which takes a tenth of a second for each target
    of 1,000 sites.
    """
    next_hop: dict[str, str] = {}
    hops = {target: 0}
    best = {target: 0.0}
    done: set[str] = set()
    nearest = [(0.0, 0, target)]
    found = count(1)
    while nearest:
        cost, _, site = heappop(nearest)
        if site in done:
            continue
        done.add(site)
        for source, its in backward[site]:
            if source not in best or cost + its < best[source]:
                best[source] = cost + its
                next_hop[source], hops[source] = site, hops[site] + 1
                heappush(nearest, (best[source], next(found), source))
    return dict(sorted(next_hop.items(), key=lambda item: hops[item[0]]))
