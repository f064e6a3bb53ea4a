"""NetStorm's nine sites with a draw of their rates, and networks whose queues TCP's bursts fit in."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np

from testbed.link import Queue
from testbed.planning import Member, PhysicalLink, View
from testbed.planning.constraints import GOODPUT
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
    draw = np.random.default_rng(seed)
    pairs = nx.Graph([(f"dc{a}", f"dc{b}") for a, b in NETSTORM9])
    network = nx.DiGraph()
    network.add_nodes_from(sorted(pairs))
    for a, b in sorted(pairs.edges):
        for source, target in ((a, b), (b, a)):
            network.add_edge(source, target, rate=float(draw.uniform(LEAST_BPS, MOST_BPS)))
    return network


def view(network: nx.DiGraph, model_bytes: int) -> View:
    """Return a view with a member at each site; routes have the least sum of 1/rate."""
    for _, _, link in network.edges(data=True):
        link["inverse-rate"] = 1 / link["rate"]
    paths = dict(nx.all_pairs_dijkstra_path(network, weight="inverse-rate"))
    pairs = ((a, b) for a in network for b in network if a != b)
    ways = {(a, b): list(zip(paths[a][b], paths[a][b][1:], strict=False)) for a, b in pairs}
    links = {f"{a}->{b}": PhysicalLink(link["rate"] / GOODPUT, 0.0) for a, b, link in network.edges(data=True)}
    members = [Member(site, site, 1.0, f"{site}-up", f"{site}-down") for site in network]
    for member in members:
        links[member.uplink] = links[member.downlink] = LAN
    routes = {(a, b): (f"{a}-up", *(f"{u}->{v}" for u, v in way), f"{b}-down") for (a, b), way in ways.items()}
    return View.of_network(members, links, routes, model_bytes)


def roomy(topology: Topology) -> Topology:
    """Return the same network with queues that TCP's bursts fit in."""
    links = {}
    for name, link in topology.links.items():
        queue = Queue(max(link.state.rate_bps / 8 * QUEUE_S, QUEUE_BYTES), "bytes")
        links[name] = replace(link, state=replace(link.state, queue=queue))
    return replace(topology, links=links)
