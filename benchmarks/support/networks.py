"""Random networks without delay, on which plans are measured."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np

from testbed.link import Queue
from testbed.planning import Member, PhysicalLink, View
from testbed.planning.constraints import GOODPUT, Constraints
from testbed.spec.topology import Topology

#: Each direction's rate in NetStorm's evaluation, bit/s of payload.
LEAST_BPS, MOST_BPS = 20e6, 155e6

#: The physical pairs of its nine sites (arXiv 2404.11352).
NETSTORM9 = ((1, 2), (1, 3), (2, 3), (2, 5), (3, 4), (4, 5), (4, 6), (5, 7), (6, 7), (6, 8), (6, 9), (7, 8), (8, 9))

#: The queue of a link without delay, which has no product of rate and delay: this time's worth, and four of the 64 KiB
#: super-packets that members send. With room for 32 frames (the least of a link) super-packets are lost: gloo and ours
#: get a quarter of 200 Mbit/s, and at 2 to 15.5 Mbit/s a round of TSEngine's plan takes 1.16 times as long, one of
#: packing's 1.04 times.
QUEUE_S, QUEUE_BYTES = 0.020, 256 * 1024

#: Fast enough to limit nothing.
LAN = PhysicalLink(1e12, 0.0)


def netstorm9(seed: int) -> nx.DiGraph:
    """Return NetStorm's nine sites with one draw of their rates."""
    return _drawn(nx.Graph([(f"dc{a}", f"dc{b}") for a, b in NETSTORM9]), seed)


def random_sites(count: int, degree: int, seed: int) -> nx.DiGraph:
    """Return a connected network of `count` sites, with `degree` links each on average: a random tree plus pairs."""
    draw = np.random.default_rng(seed)
    graph = nx.Graph()
    for site in range(1, count):
        graph.add_edge(f"s{draw.integers(site)}", f"s{site}")
    while graph.number_of_edges() < count * degree // 2:
        a, b = draw.choice(count, 2, replace=False)
        graph.add_edge(f"s{a}", f"s{b}")
    return _drawn(graph, seed)


def regular_sites(count: int, degree: int, seed: int) -> nx.DiGraph:
    """Return a network in which every site has `degree` links.

    No site is a bottleneck by itself, so nearly all links bind.
    """
    graph = nx.random_regular_graph(degree, count, seed=seed)
    return _drawn(nx.relabel_nodes(graph, {site: f"s{site}" for site in graph}), seed)


def _drawn(graph: nx.Graph, seed: int) -> nx.DiGraph:
    draw = np.random.default_rng(seed)
    directed = nx.DiGraph()
    directed.add_nodes_from(sorted(graph, key=lambda site: int(site.lstrip("dcs"))))
    for a, b in sorted(graph.edges):
        for source, target in ((a, b), (b, a)):
            directed.add_edge(source, target, rate=float(draw.uniform(LEAST_BPS, MOST_BPS)))
    return directed


def view(network: nx.DiGraph, model_bytes: int) -> View:
    """Return a view with a member at each site; routes have the least sum of 1/rate."""
    for _, _, link in network.edges(data=True):
        link["inverse-rate"] = 1 / link["rate"]
    paths = dict(nx.all_pairs_dijkstra_path(network, weight="inverse-rate"))
    pairs = ((a, b) for a in network for b in network if a != b)
    return _view(
        network, {(a, b): list(zip(paths[a][b], paths[a][b][1:], strict=False)) for a, b in pairs}, model_bytes
    )


def neighbours_view(network: nx.DiGraph, model_bytes: int) -> View:
    """Return a view with a member at each site, whose edges are the links alone: 1,000 sites have a million pairs."""
    return _view(network, {link: [link] for link in network.edges}, model_bytes)


def _view(network: nx.DiGraph, ways: dict[tuple[str, str], list[tuple[str, str]]], model_bytes: int) -> View:
    links = {f"{a}->{b}": PhysicalLink(link["rate"] / GOODPUT, 0.0) for a, b, link in network.edges(data=True)}
    members = [Member(site, site, 1.0, f"{site}-up", f"{site}-down") for site in network]
    for member in members:
        links[member.uplink] = links[member.downlink] = LAN
    routes = {(a, b): (f"{a}-up", *(f"{u}->{v}" for u, v in way), f"{b}-down") for (a, b), way in ways.items()}
    return View.of_network(members, links, routes, model_bytes)


def limits(network: nx.DiGraph) -> Constraints:
    """Return the links as the overlay's edges and capacities, without access links."""
    goodput = {f"{a}->{b}": link["rate"] for a, b, link in network.edges(data=True)}
    return Constraints(goodput, {(a, b): (f"{a}->{b}",) for a, b in network.edges})


def roomy(topology: Topology) -> Topology:
    """Return the same network with queues that TCP's bursts fit in."""
    links = {}
    for name, link in topology.links.items():
        queue = Queue(max(link.state.rate_bps / 8 * QUEUE_S, QUEUE_BYTES), "bytes")
        links[name] = replace(link, state=replace(link.state, queue=queue))
    return replace(topology, links=links)
