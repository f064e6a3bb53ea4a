from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import get_args

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.network.routing import Routes
from testbed.link import link_name
from testbed.spec.topology import Routing, Topology

pytestmark = pytest.mark.pure


def topology(sites: list[str], pairs: list[tuple[str, str, int, int]], routing: str) -> Topology:
    """Sites with a worker each, joined by (site, site, Mbit/s, ms)."""
    value = {
        "name": "random",
        "routing": routing,
        "sites": {site: {"workers": 1} for site in sites},
        "links": [{"between": [a, b], "rate": f"{rate}mbit", "delay": f"{ms}ms"} for a, b, rate, ms in pairs],
    }
    return Topology.from_value(value, Path("random.yaml"))


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Draw connected networks of up to nine sites, with few distinct rates and delays, so that ties are common."""
    sites = [f"s{i}" for i in range(draw(st.integers(2, 9)))]
    values = st.tuples(st.sampled_from([10, 20, 40]), st.sampled_from([0, 5, 10, 15]))
    edges = {(sites[draw(st.integers(0, i - 1))], sites[i]) for i in range(1, len(sites))}
    extra = st.tuples(st.sampled_from(sites), st.sampled_from(sites)).filter(lambda pair: pair[0] < pair[1])
    edges |= draw(st.sets(extra, max_size=12)) if len(sites) > 2 else set()
    order = draw(st.permutations(sorted(edges)))
    return topology(sites, [(a, b, *draw(values)) for a, b in order], draw(st.sampled_from(get_args(Routing))))


def cost(network: Topology, path: tuple[str, ...]) -> float:
    """Return the length of a path by the network's metric, as the guide defines it."""
    states = [network.links[link_name(a, b)].state for a, b in pairwise(path)]
    if network.routing == "hops":
        return len(states)
    if network.routing == "delay":
        return sum(state.delay_s + 0.001 for state in states)
    return sum(1 / state.rate_bps for state in states)


def graph_of(network: Topology, down: set[str]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(network.sites)
    for link in network.links.values():
        if link.name not in down:
            graph.add_edge(link.source, link.target, cost=cost(network, (link.source, link.target)))
    return graph


@given(networks(), st.data())
def test_packets_follow_a_shortest_path_over_what_is_up(network: Topology, data: st.DataObject) -> None:
    down = data.draw(st.sets(st.sampled_from(sorted(network.links)), max_size=4))
    routes = Routes.over(network, down)
    graph = graph_of(network, down)
    hops = {site: routes.next_hops(site) for site in network.sites}
    for source in network.sites:
        reachable = nx.descendants(graph, source)
        assert hops[source].keys() == reachable
        for target in reachable:
            walked = [source]
            while walked[-1] != target:
                walked.append(hops[walked[-1]][target])
                assert len(walked) <= len(network.sites), "a loop"
            assert tuple(walked) == routes.path(source, target), "routers along the way disagree"
            assert not {link_name(a, b) for a, b in pairwise(walked)} & down
            shortest = nx.dijkstra_path_length(graph, source, target, weight="cost")
            assert cost(network, tuple(walked)) == pytest.approx(shortest)


@given(networks())
def test_the_same_file_gives_the_same_routes(network: Topology) -> None:
    assert Routes.over(network) == Routes.over(network)


DIAMOND = ["a", "b", "c", "d"]


def test_each_metric_has_its_way() -> None:
    pairs = [("a", "d", 10, 100), ("a", "b", 40, 60), ("b", "d", 40, 60), ("a", "c", 15, 10), ("c", "d", 15, 10)]
    paths = {metric: Routes.over(topology(DIAMOND, pairs, metric)).path("a", "d") for metric in get_args(Routing)}
    assert paths == {"delay": ("a", "c", "d"), "hops": ("a", "d"), "inverse-rate": ("a", "b", "d")}


def test_links_without_delay_make_no_detour() -> None:
    pairs = [("a", "b", 10, 0), ("b", "c", 10, 0), ("a", "c", 10, 0), ("c", "d", 10, 0)]
    assert Routes.over(topology(DIAMOND, pairs, "delay")).links("a", "d") == ("a->c", "c->d")


def test_one_direction_may_be_down() -> None:
    pairs = [("a", "b", 10, 1), ("b", "c", 10, 1), ("c", "d", 10, 1)]
    routes = Routes.over(topology(DIAMOND, pairs, "delay"), {"b->c"})
    assert not routes.reach("a", "d")
    assert routes.links("d", "a") == ("d->c", "c->b", "b->a")
    assert routes.links("a", "a") == ()
    with pytest.raises(KeyError):
        routes.links("a", "c")


def test_routers_agree_where_two_ways_are_as_long() -> None:
    """From c to e it is 22 ms by b and by d; added up from a on, the two sums differ in their last bit."""
    pairs = [("c", "a", 10, 5), ("c", "d", 10, 15), ("b", "e", 10, 10), ("d", "e", 10, 5), ("c", "b", 10, 10)]
    routes = Routes.over(topology(["c", "b", "d", "a", "e"], pairs, "delay"))
    assert routes.path("a", "e")[1:] == routes.path("c", "e")
