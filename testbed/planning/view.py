"""A view: what is known of the network at one moment. Immutable, versioned JSON in and out; what policies see.

A view has two storeys. Below, physical links and the route of each pair of members over them; above, overlay
edges, one for each ordered pair that can talk. Where the routes are not known (a real deployment), the lower
storey is empty and an edge's rate is all there is.

    paris-w0 ==================== edge ====================> tokyo-w0
        `-> paris-w0->paris -> paris->tokyo -> tokyo->tokyo-w0 -'       its route
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, cast, get_args

from testbed.errors import BAD_INPUT, DetailedError

VIEW_VERSION = 1

#: An ordered pair of members: (sender, receiver).
Pair = tuple[str, str]

#: `declared`: what the files say. `measured`: that, corrected by what the members' own transfers showed.
#: `oracle`: what the emulator does at the moment.
Knowledge = Literal["declared", "measured", "oracle"]

#: Where an edge's rate comes from; `unknown`: from a measurement too long ago to go by.
Source = Literal["declared", "measured", "unknown"]


class ViewError(DetailedError, ValueError):
    """A view that contradicts itself, or JSON that is no view."""

    exit_code = BAD_INPUT


@dataclass(frozen=True, slots=True)
class Member:
    """A member, its site, its declared compute speed, and the links between it and its site's router."""

    name: str
    site: str
    speed: float
    uplink: str
    downlink: str


@dataclass(frozen=True, slots=True)
class PhysicalLink:
    """A directed link. `rate_bps` counts frames, as shaping does; `delay_s` is one way."""

    rate_bps: float
    delay_s: float
    up: bool = True


@dataclass(frozen=True, slots=True)
class Edge:
    """A directed overlay edge: what its path carries alone (`rate_bps`, frames) and its round trip.

    `age_s` is the age of the newest measurement behind it, None where there is none.
    """

    rate_bps: float
    rtt_s: float
    age_s: float | None = None
    source: Source = "declared"


@dataclass(frozen=True, slots=True)
class View:
    """Members, links, routes and edges at `at_s` (Unix time), and the bytes that a round synchronizes.

    Raises ViewError when a name is unknown or doubled, or a rate is not positive.
    """

    members: tuple[Member, ...]
    links: Mapping[str, PhysicalLink]
    routes: Mapping[Pair, tuple[str, ...]]
    edges: Mapping[Pair, Edge]
    model_bytes: int
    at_s: float = 0.0
    knowledge: Knowledge = "declared"
    _names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", frozenset(member.name for member in self.members))
        if not self.members or len(self._names) != len(self.members):
            raise ViewError("members must be at least one, each named once", field="members")
        if self.model_bytes <= 0:
            raise ViewError(
                f"model_bytes {self.model_bytes} must be positive", field="model_bytes", given=self.model_bytes
            )
        if self.knowledge not in get_args(Knowledge):
            raise ViewError(
                f"knowledge {self.knowledge!r} is none of {', '.join(get_args(Knowledge))}",
                field="knowledge",
                given=self.knowledge,
            )
        for name, link in self.links.items():
            if not link.rate_bps > 0 or not link.delay_s >= 0:
                raise ViewError(
                    f"link {name}: rate {link.rate_bps} must be positive, delay {link.delay_s} not negative",
                    field="links",
                    link=name,
                )
        for pair, route in self.routes.items():
            self._check_pair(pair)
            if missing := [name for name in route if name not in self.links]:
                raise ViewError(
                    f"route {pair[0]} to {pair[1]}: unknown links {missing}",
                    rule="unknown-link",
                    field="routes",
                    given=missing,
                )
        for pair, edge in self.edges.items():
            self._check_pair(pair)
            if not edge.rate_bps > 0 or not edge.rtt_s >= 0:
                raise ViewError(
                    f"edge {pair[0]} to {pair[1]}: rate {edge.rate_bps}, round trip {edge.rtt_s}",
                    rule="rate",
                    field="edges",
                    link=f"{pair[0]}->{pair[1]}",
                )
            if pair in self.routes and not self.passable(*pair):
                raise ViewError(
                    f"edge {pair[0]} to {pair[1]}: a link of its route is down",
                    rule="down",
                    field="edges",
                    link=f"{pair[0]}->{pair[1]}",
                )

    def _check_pair(self, pair: Pair) -> None:
        source, target = pair
        if source == target or not {source, target} <= self._names:
            raise ViewError(f"{source} to {target} is not a pair of members", rule="unknown-member", given=pair)

    @classmethod
    def of_network(
        cls,
        members: Iterable[Member],
        links: Mapping[str, PhysicalLink],
        routes: Mapping[Pair, tuple[str, ...]],
        model_bytes: int,
        at_s: float = 0.0,
        knowledge: Knowledge = "declared",
    ) -> View:
        """A view whose edges follow from the links: one where both directions of a pair have a route that is up."""
        bare = cls(tuple(members), dict(links), dict(routes), {}, model_bytes, at_s, knowledge)
        return replace(bare, edges=bare.edges_of_links())

    def among(self, names: Collection[str]) -> View:
        """The view of these members alone."""
        return replace(
            self,
            members=tuple(member for member in self.members if member.name in names),
            routes={pair: route for pair, route in self.routes.items() if set(pair) <= set(names)},
            edges={pair: edge for pair, edge in self.edges.items() if set(pair) <= set(names)},
        )

    def scaled(self, factors: Mapping[str, float]) -> View:
        """Return the view with links, and edges that are capacities of their own, that carry so many times as much."""
        links = {
            name: replace(link, rate_bps=link.rate_bps * factors.get(name, 1.0)) for name, link in self.links.items()
        }
        edges = {
            (u, v): replace(
                edge,
                rate_bps=min((links[name].rate_bps for name in self.routes[u, v]), default=edge.rate_bps)
                if (u, v) in self.routes
                else edge.rate_bps * factors.get(f"{u}=>{v}", 1.0),
            )
            for (u, v), edge in self.edges.items()
        }
        return replace(self, links=links, edges=edges)

    def edges_of_links(self) -> dict[Pair, Edge]:
        """The edges that links and routes give, without any measurement."""
        return {
            pair: Edge(self.path_rate(*pair), self.path_rtt(*pair))
            for pair in self.routes
            if self.passable(*pair) and self.passable(*reversed(pair))
        }

    def passable(self, source: str, target: str) -> bool:
        """Whether a route leads from `source` to `target` and all of its links are up."""
        route = self.routes.get((source, target))
        return route is not None and all(self.links[name].up for name in route)

    def path_rate(self, source: str, target: str) -> float:
        """Bit/s that the route carries alone: its slowest link's rate (infinite for a route without links)."""
        return min((self.links[name].rate_bps for name in self.routes[source, target]), default=float("inf"))

    def path_delay(self, source: str, target: str) -> float:
        """Seconds one way along the route, queues empty."""
        return sum(self.links[name].delay_s for name in self.routes[source, target])

    def path_rtt(self, source: str, target: str) -> float:
        """Seconds there and back, queues empty."""
        return self.path_delay(source, target) + self.path_delay(target, source)

    def edge_delay(self, source: str, target: str) -> float:
        """Seconds one way over an edge: its route's delay where that is known, else half the round trip."""
        if (source, target) in self.routes:
            return self.path_delay(source, target)
        return self.edges[source, target].rtt_s / 2

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names, in order."""
        return tuple(member.name for member in self.members)

    def sites(self) -> dict[str, tuple[str, ...]]:
        """Each site's members, in order."""
        sites: dict[str, tuple[str, ...]] = {}
        for member in self.members:
            sites[member.site] = (*sites.get(member.site, ()), member.name)
        return sites

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON, versioned."""
        return {
            "version": VIEW_VERSION,
            "at_s": self.at_s,
            "knowledge": self.knowledge,
            "model_bytes": self.model_bytes,
            "members": [asdict(member) for member in self.members],
            "links": links_to_json(self.links),
            "routes": routes_to_json(self.routes),
            "edges": [{"from": u, "to": v, **asdict(edge)} for (u, v), edge in self.edges.items()],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> View:
        """The view that `to_json` wrote; ViewError when the value is not one."""
        try:
            if value["version"] != VIEW_VERSION:
                raise ViewError(
                    f"view version {value['version']!r} is not {VIEW_VERSION}", field="version", given=value["version"]
                )
            return cls(
                members=members_from_json(value["members"]),
                links=links_from_json(value["links"]),
                routes=routes_from_json(value["routes"]),
                edges=dict(_edge_from_json(edge) for edge in value["edges"]),
                model_bytes=int(value["model_bytes"]),
                at_s=float(value["at_s"]),
                knowledge=cast(Knowledge, value["knowledge"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ViewError(f"not a view: {error!r}", rule="not-a-view") from error


def links_to_json(links: Mapping[str, PhysicalLink]) -> dict[str, Any]:
    """{name: {rate_bps, delay_s, up}}."""
    return {name: asdict(link) for name, link in links.items()}


def links_from_json(value: Mapping[str, Any]) -> dict[str, PhysicalLink]:
    """What `links_to_json` wrote; ViewError when the value is none."""
    try:
        links = {name: PhysicalLink(**link) for name, link in value.items()}
    except (TypeError, AttributeError) as error:
        raise ViewError(f"not links: {error}", field="links") from error
    for name, link in links.items():
        if not isinstance(link.up, bool) or not all(
            isinstance(its, float | int) for its in (link.rate_bps, link.delay_s)
        ):
            raise ViewError(
                f"not links: {name} must have numbers for rate_bps and delay_s, and true or false for up",
                field="links",
                link=name,
            )
    return links


def members_from_json(value: Iterable[Mapping[str, Any]]) -> tuple[Member, ...]:
    """Members from their fields; ViewError when the value has none."""
    try:
        return tuple(Member(**member) for member in value)
    except TypeError as error:
        raise ViewError(f"not members: {error}", field="members") from error


def routes_to_json(routes: Mapping[Pair, tuple[str, ...]]) -> list[Any]:
    """[[sender, receiver, [link, ...]], ...]: JSON has no pairs for keys."""
    return [[source, target, list(route)] for (source, target), route in routes.items()]


def routes_from_json(value: Iterable[Any]) -> dict[Pair, tuple[str, ...]]:
    """What `routes_to_json` wrote; ViewError when the value is none."""
    try:
        return {(source, target): tuple(map(str, route)) for source, target, route in value}
    except (TypeError, ValueError) as error:
        raise ViewError(f"not routes: {error}", field="routes") from error


def _edge_from_json(value: Mapping[str, Any]) -> tuple[Pair, Edge]:
    return (value["from"], value["to"]), Edge(value["rate_bps"], value["rtt_s"], value["age_s"], value["source"])
