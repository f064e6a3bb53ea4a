"""Networks for tests: random site graphs with routed pairs, and small ones drawn by hand."""

from __future__ import annotations

import itertools

import networkx as nx
from hypothesis import strategies as st

from testbed.planning.view import Knowledge, Member, PhysicalLink, View

LAN = PhysicalLink(1e9, 1e-4)


def view_of(
    graph: nx.Graph,
    per_site: dict[str, int],
    model_bytes: int = 10_000_000,
    knowledge: Knowledge = "declared",
    lan: PhysicalLink = LAN,
) -> View:
    """A view of sites joined by `graph`, whose edges carry `rates` (bit/s there, back) and `delay` (s)."""
    links: dict[str, PhysicalLink] = {}
    for a, b, data in graph.edges(data=True):
        for (source, target), rate in zip(((a, b), (b, a)), data["rates"], strict=True):
            links[f"{source}->{target}"] = PhysicalLink(rate, data["delay"])
    members = []
    for site in graph:
        for i in range(per_site.get(site, 1)):
            name = f"{site}-w{i}"
            members.append(Member(name, site, 1.0, f"{name}->{site}", f"{site}->{name}"))
            links[members[-1].uplink] = links[members[-1].downlink] = lan
    paths = dict(nx.all_pairs_dijkstra_path(graph, weight="delay"))
    routes = {}
    for a, b in itertools.permutations(members, 2):
        hops = itertools.pairwise(paths[a.site][b.site])
        routes[a.name, b.name] = (a.uplink, *(f"{x}->{y}" for x, y in hops), b.downlink)
    return View.of_network(members, links, routes, model_bytes, knowledge=knowledge)


def sites(*edges: tuple[str, str, float], delay: float = 0.01) -> nx.Graph:
    """A site graph of (a, b, Mbit/s both ways) with one delay."""
    graph = nx.Graph()
    for a, b, mbps in edges:
        graph.add_edge(a, b, rates=(mbps * 1e6, mbps * 1e6), delay=delay)
    return graph


@st.composite
def views(draw: st.DrawFn, max_sites: int = 5, max_per_site: int = 3) -> View:
    """A connected network of unequal links, routed by delay."""
    count = draw(st.integers(1, max_sites))
    names = [f"s{i}" for i in range(count)]
    rates = st.tuples(st.floats(1e6, 2e8), st.floats(1e6, 2e8))
    delays = st.floats(0, 0.15)
    graph = nx.Graph()
    graph.add_nodes_from(names)
    for i in range(1, count):
        graph.add_edge(names[draw(st.integers(0, i - 1))], names[i], rates=draw(rates), delay=draw(delays))
    for a, b in itertools.combinations(names, 2):
        if not graph.has_edge(a, b) and draw(st.booleans()):
            graph.add_edge(a, b, rates=draw(rates), delay=draw(delays))
    per_site = {name: draw(st.integers(1, max_per_site)) for name in names}
    return view_of(graph, per_site, model_bytes=draw(st.integers(1_000, 50_000_000)))
