"""Whom a member sends to under one plan: peers directly, and over others where the direct way is full. Pure."""

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
    """What `member` sends directly to `peers`, and which auxiliary `routes` there are among all members.

    `number` stands for the table in frames, and is that of all members' tables which belong together: a plan's epoch.
    """

    number: int
    member: str
    peers: frozenset[str]
    routes: tuple[Route, ...]

    def hops(self) -> set[Hop]:
        """Where this member needs connections to: for frames of its own, and for those that it forwards."""
        hops: set[Hop] = {(peer, DIRECT) for peer in self.peers}
        for route in self.routes:
            path = _path(route)
            if self.member in path[:-1]:
                position = path.index(self.member)
                hops.add((path[position + 1], len(path) - 1 - position))
        return hops

    def own(self) -> Iterator[tuple[int, Route]]:
        """The routes that take frames over from this member's own direct ways, with their numbers."""
        for number, route in enumerate(self.routes, 1):
            if route.source == self.member and route.target in self.peers:
                yield number, route

    def route(self, peer: str, frame: Frame) -> Route:
        """The route of a frame that `peer` sent here; FrameError unless it is in the table and leads from there."""
        if frame.route > len(self.routes):
            raise FrameError(f"table {self.number} has no auxiliary route {frame.route}")
        route = self.routes[frame.route - 1]
        path = _path(route)
        here = len(path) - 1 - frame.left
        if here < 1 or path[here] != self.member or path[here - 1] != peer:
            raise FrameError(f"auxiliary route {route} has no hop from {peer} with {frame.left} members to go")
        return route


def next_hop(route: Route, left: int) -> Hop:
    """Where a frame goes on its route that `left` members, this one among them, are still to forward."""
    path = _path(route)
    return path[len(path) - left], left


def _path(route: Route) -> tuple[str, ...]:
    return (route.source, *route.via, route.target)
