"""The emulated network as a planning view: links, the routes between members, the bytes of a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from testbed.emulation.network.routing import Routes
from testbed.link import LinkState, link_name
from testbed.planning.view import Knowledge, Member, Pair, PhysicalLink, View
from testbed.spec.topology import Topology

#: Up to this many members, a view has a route for each pair: 1,000 members would have a million, at 2 KB each.
MOST_MESHED = 128


def members(topology: Topology) -> tuple[Member, ...]:
    """Return every worker as a member, with the names of its access links."""
    return tuple(
        Member(w.name, w.site, w.speed, uplink=link_name(w.name, w.site), downlink=link_name(w.site, w.name))
        for w in topology.workers
    )


def slowed(everyone: Iterable[Member], stragglers: Mapping[str, float]) -> tuple[Member, ...]:
    """Return the members with the speeds of those that are always slow, given the factors on all of their steps."""
    return tuple(replace(member, speed=member.speed / stragglers.get(member.name, 1.0)) for member in everyone)


def physical_links(topology: Topology, states: Mapping[str, LinkState]) -> dict[str, PhysicalLink]:
    """Return the WAN links in the given states, and the workers' access links."""
    links = {name: PhysicalLink(state.rate_bps, state.delay_s, state.up) for name, state in states.items()}
    for member in members(topology):
        for name in (member.uplink, member.downlink):
            links[name] = PhysicalLink(topology.lan.rate, topology.lan.delay)
    return links


def member_routes(topology: Topology, routes: Routes) -> dict[Pair, tuple[str, ...]]:
    """Return the links on the route of each pair of members whose sites reach each other.

    With more than MOST_MESHED members, only pairs of one site or of two sites that a link joins.
    """
    everyone = members(topology)
    if len(everyone) > MOST_MESHED:
        return _to_neighbours(everyone, topology, routes)
    found: dict[Pair, tuple[str, ...]] = {}
    for a in everyone:
        for b in everyone:
            if a.name != b.name and routes.reach(a.site, b.site):
                found[a.name, b.name] = (a.uplink, *routes.links(a.site, b.site), b.downlink)
    return found


def _to_neighbours(everyone: Sequence[Member], topology: Topology, routes: Routes) -> dict[Pair, tuple[str, ...]]:
    at: dict[str, list[Member]] = {}
    for member in everyone:
        at.setdefault(member.site, []).append(member)
    joined = [
        *((site, site) for site in topology.sites),
        *((link.source, link.target) for link in topology.links.values()),
    ]
    return {
        (a.name, b.name): (a.uplink, *routes.links(a.site, b.site), b.downlink)
        for source, target in joined
        if routes.reach(source, target)
        for a in at.get(source, ())
        for b in at.get(target, ())
        if a is not b
    }


def declared_states(topology: Topology) -> dict[str, LinkState]:
    """Return each link's state at the start: its configured one, or the first row of its trace."""
    return {name: link.at(0.0) for name, link in topology.links.items()}


def true_states(states: Mapping[str, LinkState]) -> dict[str, LinkState]:
    """Return the links' states as an oracle is told them: a link that loses every packet carries nothing."""
    return {name: replace(state, up=False) if state.loss >= 1 else state for name, state in states.items()}


def view_of(
    topology: Topology,
    routes: Routes,
    states: Mapping[str, LinkState],
    model_bytes: int,
    at_s: float,
    knowledge: Knowledge,
) -> View:
    """Return the view of a network whose links have these states at `at_s` (Unix seconds)."""
    everyone, links = members(topology), physical_links(topology, states)
    return View.of_network(everyone, links, member_routes(topology, routes), model_bytes, at_s, knowledge)


def declared_view(topology: Topology, model_bytes: int, routes: Routes | None = None) -> View:
    """Return the view of the declared network at its start. `routes` saves computing them, if they are known."""
    routes = routes or Routes.over(topology)
    return view_of(topology, routes, declared_states(topology), model_bytes, 0.0, "declared")
