"""A view of the network at one moment: the input of every policy. Immutable; read from and written as versioned JSON.

A view has two layers. The lower one has the physical links and the route of each pair of members over them. The upper
one has the overlay edges, one for each ordered pair of members that can exchange data. Where routes are unknown (in a
real deployment) the lower layer is empty, and an edge is known by its rate and round trip alone.

    paris-w0 ==================== edge ====================> tokyo-w0
        `-> paris-w0->paris -> paris->tokyo -> tokyo->tokyo-w0 -'       its route
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from typing import Any, Literal, cast, get_args

from testbed.errors import BAD_INPUT, DetailedError

VIEW_VERSION = 1

#: An ordered pair of members: (sender, receiver).
Pair = tuple[str, str]

#: The origin of a view. `declared`: the topology's files. `measured`: the files, corrected by the members' own
#: transfers. `oracle`: the state that the emulator applies at the moment.
Knowledge = Literal["declared", "measured", "oracle"]

#: The origin of an edge's rate. `unknown`: its last measurement is too old to rely on.
Source = Literal["declared", "measured", "unknown"]


class ViewError(DetailedError, ValueError):
    """A view contradicts itself, or a value read as JSON is not a view."""

    exit_code = BAD_INPUT


@dataclass(frozen=True, slots=True)
class Member:
    """A member and where it stands in the network."""

    name: str
    site: str
    #: The declared compute speed; 1.0 takes the declared step time, 0.5 twice as long.
    speed: float
    #: The links from the member to its site's router, and from the router to the member.
    uplink: str
    downlink: str


@dataclass(frozen=True, slots=True)
class PhysicalLink:
    """A directed link of the network."""

    #: Bit/s, counted in frames as the shaper counts.
    rate_bps: float
    #: Seconds one way.
    delay_s: float
    up: bool = True


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge from one member to another: its rate and round trip, and how these are known."""

    #: Bit/s, in frames, that the edge's path carries while no other traffic uses it.
    rate_bps: float
    rtt_s: float
    #: Seconds since the newest measurement of the rate; None if it was never measured.
    age_s: float | None = None
    source: Source = "declared"


@dataclass(frozen=True, slots=True)
class View:
    """The network as policies see it, and the size of the model that a round synchronizes.

    Raises:
        ViewError: There is no member, a name is unknown or given twice, a rate or size is not positive, or an edge's
            route has a link that is down.
    """

    members: tuple[Member, ...]
    #: The physical links by name, such as `paris->tokyo`.
    links: Mapping[str, PhysicalLink]
    #: Each pair of members with a known route: the names of the links along it.
    routes: Mapping[Pair, tuple[str, ...]]
    #: Each pair of members that can exchange data.
    edges: Mapping[Pair, Edge]
    #: Bytes that one member contributes to a round.
    model_bytes: int
    #: The moment of the view, Unix time.
    at_s: float = 0.0
    knowledge: Knowledge = "declared"

    def __post_init__(self) -> None:
        names = frozenset(self.names)
        if not self.members or len(names) != len(self.members):
            raise ViewError("members must be at least one, each named once", field="members")
        if self.model_bytes <= 0:
            raise ViewError(f"model_bytes {self.model_bytes} must be > 0", field="model_bytes", given=self.model_bytes)
        if self.knowledge not in get_args(Knowledge):
            raise ViewError(
                f"knowledge {self.knowledge!r} must be one of {', '.join(get_args(Knowledge))}",
                field="knowledge",
                given=self.knowledge,
            )
        for name, link in self.links.items():
            if not link.rate_bps > 0 or not link.delay_s >= 0:
                raise ViewError(
                    f"link {name}: its rate_bps {link.rate_bps} must be above 0, its delay_s {link.delay_s} at least 0",
                    field="links",
                    link=name,
                )
        for pair in (*self.routes, *self.edges):
            if pair[0] == pair[1] or not names.issuperset(pair):
                raise ViewError(
                    f"{pair[0]} to {pair[1]} is not a pair of different members", rule="unknown-member", given=pair
                )
        for pair, route in self.routes.items():
            if missing := [name for name in route if name not in self.links]:
                raise ViewError(
                    f"route {pair[0]} to {pair[1]} uses {', '.join(missing)}; list them under links",
                    rule="unknown-link",
                    field="routes",
                    given=missing,
                )
        for pair, edge in self.edges.items():
            if not edge.rate_bps > 0 or not edge.rtt_s >= 0:
                raise ViewError(
                    f"edge {pair[0]} to {pair[1]}: its rate_bps {edge.rate_bps} must be above 0, its rtt_s "
                    f"{edge.rtt_s} at least 0",
                    rule="rate",
                    field="edges",
                    link=f"{pair[0]}->{pair[1]}",
                )
            if pair in self.routes and not self.passable(*pair):
                raise ViewError(
                    f"edge {pair[0]} to {pair[1]}: a link of its route is down; leave the edge out",
                    rule="down",
                    field="edges",
                    link=f"{pair[0]}->{pair[1]}",
                )

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
        """Return a view with an edge for each pair of members whose routes in both directions have all links up."""
        bare = cls(tuple(members), dict(links), dict(routes), {}, model_bytes, at_s, knowledge)
        return replace(bare, edges=bare.edges_of_links())

    def among(self, names: Collection[str]) -> View:
        """Return the view of the members in `names` alone; the links stay."""
        return replace(
            self,
            members=tuple(member for member in self.members if member.name in names),
            routes={pair: route for pair, route in self.routes.items() if set(pair) <= set(names)},
            edges={pair: edge for pair, edge in self.edges.items() if set(pair) <= set(names)},
        )

    def without(self, apart: Mapping[str, Collection[str]]) -> View:
        """Return the view without the edges, in both directions, between each member in `apart` and its peers there."""
        kept = {
            (u, v): edge
            for (u, v), edge in self.edges.items()
            if v not in apart.get(u, ()) and u not in apart.get(v, ())
        }
        return self if len(kept) == len(self.edges) else replace(self, edges=kept)

    def scaled(self, factors: Mapping[str, float]) -> View:
        """Return the view with rates multiplied by `factors`, whose keys are names of links, or `u=>v` for edges.

        An edge with a route gets the rate of the route's slowest link; the factor of an edge counts without a route.
        """
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
        """Return the edges that follow from the links and routes, as if nothing had been measured."""
        return {
            pair: Edge(self.path_rate(*pair), self.path_delay(*pair) + self.path_delay(*reversed(pair)))
            for pair in self.routes
            if self.passable(*pair) and self.passable(*reversed(pair))
        }

    def passable(self, source: str, target: str) -> bool:
        """Return whether the route from `source` to `target` is known and all of its links are up."""
        route = self.routes.get((source, target))
        return route is not None and all(self.links[name].up for name in route)

    def path_rate(self, source: str, target: str) -> float:
        """Return the rate in bit/s of the route's slowest link; infinite for a route without links."""
        return min((self.links[name].rate_bps for name in self.routes[source, target]), default=float("inf"))

    def path_delay(self, source: str, target: str) -> float:
        """Return the seconds one way along the route, queues empty."""
        return sum(self.links[name].delay_s for name in self.routes[source, target])

    def edge_delay(self, source: str, target: str) -> float:
        """Return the seconds one way over an edge: its route's delay, or half its round trip where it has no route."""
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
        """Return the view as plain values for JSON, with the version of the format."""
        return {
            "version": VIEW_VERSION,
            "at_s": self.at_s,
            "knowledge": self.knowledge,
            "model_bytes": self.model_bytes,
            "members": [asdict(member) for member in self.members],
            "links": {name: asdict(link) for name, link in self.links.items()},
            "routes": [[u, v, list(route)] for (u, v), route in self.routes.items()],
            "edges": [{"from": u, "to": v, **asdict(edge)} for (u, v), edge in self.edges.items()],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> View:
        """Return the view that `to_json` wrote. Raises ViewError if `value` is not a view."""
        try:
            if value["version"] != VIEW_VERSION:
                raise ViewError(
                    f"view version {value['version']!r} cannot be read; this release reads version {VIEW_VERSION}",
                    field="version",
                    given=value["version"],
                )
            return cls(
                members=_members_from_json(value["members"]),
                links=_links_from_json(value["links"]),
                routes=_routes_from_json(value["routes"]),
                edges=dict(_edge_from_json(edge) for edge in value["edges"]),
                model_bytes=int(value["model_bytes"]),
                at_s=float(value["at_s"]),
                knowledge=cast(Knowledge, value["knowledge"]),
            )
        except ViewError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ViewError(
                f"not a view, which has the keys and types that `to_json` writes: {error!r}", rule="not-a-view"
            ) from error


@contextmanager
def _reading(field: str, form: str) -> Iterator[None]:
    """Turn an error of a malformed value inside the context into a ViewError that names the expected form."""
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        raise ViewError(f"{field}: each must have {form}: {error}", field=field) from error


def _links_from_json(value: Mapping[str, Any]) -> dict[str, PhysicalLink]:
    with _reading("links", "rate_bps, delay_s and up"):
        links = {name: PhysicalLink(**link) for name, link in value.items()}
    for name, link in links.items():
        if not _are_finite(link.rate_bps, link.delay_s) or not isinstance(link.up, bool):
            raise ViewError(
                f"link {name}: rate_bps and delay_s must be finite numbers, up must be true or false",
                field="links",
                link=name,
            )
    return links


def _members_from_json(value: Iterable[Mapping[str, Any]]) -> tuple[Member, ...]:
    with _reading("members", "name, site, speed, uplink and downlink"):
        members = tuple(Member(**member) for member in value)
    for member in members:
        texts = all(isinstance(its, str) for its in (member.name, member.site, member.uplink, member.downlink))
        if not texts or not isinstance(member.speed, float | int) or not 0 < member.speed < inf:
            raise ViewError(
                f"member {member.name}: its speed {member.speed!r} must be a number above 0, its other fields texts",
                field="members",
                member=str(member.name),
            )
    return members


def _routes_from_json(value: Iterable[Any]) -> dict[Pair, tuple[str, ...]]:
    with _reading("routes", "the form [sender, receiver, [link, ...]]"):
        return {(source, target): tuple(map(str, route)) for source, target, route in value}


def _edge_from_json(value: Mapping[str, Any]) -> tuple[Pair, Edge]:
    edge = Edge(value["rate_bps"], value["rtt_s"], value["age_s"], value["source"])
    age_s = 0.0 if edge.age_s is None else edge.age_s
    if not _are_finite(edge.rate_bps, edge.rtt_s, age_s) or edge.source not in get_args(Source):
        raise ViewError(
            f"edge {value['from']} to {value['to']}: rate_bps and rtt_s must be finite, age_s too or null, and source "
            f"{', '.join(get_args(Source))}",
            field="edges",
            link=f"{value['from']}->{value['to']}",
        )
    return (value["from"], value["to"]), edge


def _are_finite(*values: object) -> bool:
    return all(isinstance(value, float | int) and isfinite(value) for value in values)
