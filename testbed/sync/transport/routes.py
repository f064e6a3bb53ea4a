"""The routes of one plan: directly to peers, and over other members where the direct connection is full. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from testbed.plan import Route
from testbed.sync.errors import FrameError
from testbed.sync.transport.frame import DIRECT, Frame

#: A peer and the channel to it.
Hop = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RouteTable:
    """One member's routes under one plan: the peers to which it sends directly, and all auxiliary routes."""

    #: The table's number in frames, the same at all members: the plan's epoch.
    number: int
    #: The member whose table this is.
    member: str
    #: The peers to which the member sends directly.
    peers: frozenset[str]
    #: The auxiliary routes among all members.
    routes: tuple[Route, ...]

    def hops(self) -> set[Hop]:
        """Return the connections that this member needs, for its own frames and for those that it forwards."""
        hops: set[Hop] = {(peer, DIRECT) for peer in self.peers}
        for route in self.routes:
            path = _path(route)
            if self.member in path[:-1]:
                position = path.index(self.member)
                hops.add((path[position + 1], len(path) - 1 - position))
        return hops

    def own(self) -> Iterator[tuple[int, Route]]:
        """Yield the auxiliary routes, with their numbers, that relieve this member's direct connections."""
        for number, route in enumerate(self.routes, 1):
            if route.source == self.member and route.target in self.peers:
                yield number, route

    def route(self, peer: str, frame: Frame) -> Route:
        """Return the route of a frame that `peer` sent here.

        Raises:
            FrameError: The table has no such route, or it does not lead from `peer` to this member.
        """
        if frame.route > len(self.routes):
            raise FrameError(f"the plan of epoch {self.number} has no auxiliary route {frame.route}")
        route = self.routes[frame.route - 1]
        path = _path(route)
        here = len(path) - 1 - frame.left
        if here < 1 or path[here] != self.member or path[here - 1] != peer:
            raise FrameError(f"auxiliary route {route} has no hop from {peer} with {frame.left} members to go")
        return route


def next_hop(route: Route, left: int) -> Hop:
    """Return the next hop of a frame that `left` members, this one included, have still to forward."""
    path = _path(route)
    return path[len(path) - left], left


def _path(route: Route) -> tuple[str, ...]:
    return (route.source, *route.via, route.target)
