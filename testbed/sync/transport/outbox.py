"""A member's outgoing frames: its routes under a plan, a sender for each next hop, channels for auxiliary routes.

    put --> queue of b ----------------------> b               channel 0: frames to b itself
              `-spill-> channel 2 of v --> v --forward--> channel 1 of b --> b
                                <--taken--'  <--taken----------------------'

A frame on an auxiliary route travels on connections of its own. There a frame never waits at its receiver for another
frame (its sender ensures that), so it delays none behind it. Channel n of a peer carries frames that n - 1 more members
forward. A connection carries one frame at a time, and the next one after the answer that the frame has reached the end
of its route. So a route that is full beyond its first hop, where its source can't see it, takes over no more frames.
Without the answers, chunks lay in the buffers of second hops, and rounds that followed their plans took 15 % longer
than without auxiliary routes (simulated). A forwarder sets aside a payload for each connection, and channel n waits for
channel n - 1 alone, so no cycle of channels can deadlock.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from testbed.plan import Route
from testbed.protocol import PeerSample, Probe
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.executor import weakly
from testbed.sync.transport import tcpinfo
from testbed.sync.transport.frame import DIRECT, Frame, FrameFormat
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.probe import ProbeSender
from testbed.sync.transport.send_queue import Feed, Priority, SendQueue
from testbed.sync.transport.sender import Sender
from testbed.sync.transport.startup import StartUp, StartUps

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


#: Queued frames that keep a connection busy: the next frame, while one is being sent.
AT_HAND = 1


class Outbox:
    """The senders of one member. Any thread may call.

    Args:
        header_bytes: The length of the frames' own headers.
        roster: The addresses of all members.
        on_failure: Called with the peer and the reason when frames can't be delivered.
    """

    def __init__(
        self,
        settings: TransportSettings,
        header_bytes: int,
        roster: Mapping[str, tuple[str, int]],
        on_failure: Callable[[str, str], None],
    ) -> None:
        self._settings = settings
        self._wire = FrameFormat(header_bytes)
        self._roster = roster
        self._on_failure = on_failure
        self._guard = threading.Lock()
        self._senders: dict[Hop, Sender] = {}
        self._tables: dict[int, RouteTable] = {}
        self._dropped_s = 0.0
        self._leaving = False
        self._prober = ProbeSender(settings, roster, weakly(self._sends))
        self._start_ups = StartUps(settings.member, weakly(self._connections))

    @property
    def head_bytes(self) -> int:
        """The bytes of a frame's head."""
        return self._wire.size

    def connect(self, table: RouteTable) -> list[Sender]:
        """Return the senders to all next hops of a table. New senders connect already.

        From now on frames may come that this member forwards by the table.

        Raises:
            SyncError: This member is leaving. A peer that the table names may have left before.
        """
        with self._guard:
            if self._leaving:
                member = self._settings.member
                raise SyncError(
                    f"{member} is leaving the run, so it opens no connections", rule="leaving", member=member
                )
            self._tables[table.number] = table
        return [self._sender(hop) for hop in sorted(table.hops())]

    def follow(self, table: RouteTable) -> None:
        """Let the auxiliary routes of this table, and no others, take frames over from now on."""
        feeds: dict[Hop, list[Feed]] = {hop: [] for hop in self._hops() if hop[1]}
        for number, route in table.own():
            queue = self._sender((route.target, DIRECT)).queue
            hop = next_hop(route, len(route.via) + 1)
            feeds.setdefault(hop, []).append(Feed(queue, table.number, number, len(route.via)))
        for hop, fed in feeds.items():
            self._sender(hop).queue.feed(fed)

    def forget(self, before: int) -> None:
        """Drop the tables with numbers below `before`, because no frame uses them any more."""
        with self._guard:
            self._tables = {number: table for number, table in self._tables.items() if number >= before}

    def put(
        self,
        peers: Sequence[str],
        priority: Priority,
        frame: Frame,
        payload: memoryview,
        sent: Callable[[str], None],
        table: int | None = None,
    ) -> None:
        """Send a frame to each of `peers`, directly or over an auxiliary route of the table; see SendQueue.put.

        `sent` is called for each peer, with its name.
        """
        if len(peers) > 1:
            frame = frame.sealed(payload)  # here, so that the checksum is computed once
        for peer in peers:
            sender = self._sender((peer, DIRECT))
            sender.queue.put(priority, frame, payload, partial(sent, peer), table)
            if sender.failure:
                self._on_failure(peer, sender.failure)

    def crowded(self, peer: str) -> bool:
        """Return whether a frame for `peer` would only wait now, behind other frames or in a queue on the path.

        Returns False if an auxiliary route would take it over.
        """
        sender = self._sender((peer, DIRECT))
        if sender.queue.relieved:
            return False
        return len(sender.queue) >= AT_HAND or sender.queueing()

    def origin(self, peer: str, frame: Frame) -> str:
        """Return the member that made a frame, which `peer` sent here.

        Raises:
            FrameError: The frame's route does not lead over this member.
        """
        return self._table(frame).route(peer, frame).source if frame.route else peer

    def forward(self, peer: str, frame: Frame, payload: memoryview) -> None:
        """Forward a frame that `peer` sent for another member. Returns when the frame was sent.

        Raises:
            FrameError: No table has the frame's route, or it does not lead from `peer` over this member.
        """
        route = self._table(frame).route(peer, frame)
        onward = self._sender(next_hop(route, frame.left))
        # A copy: when the queue is closed this returns before the frame has left, and the payload is only lent.
        onward.queue.pass_on(frame._replace(left=frame.left - 1), memoryview(bytearray(payload)))

    def samples(self) -> tuple[PeerSample, ...]:
        """Return the measurements of the path to each peer since the last call."""
        with self._guard:
            senders = dict(self._senders)
        channels: dict[str, dict[int, Sender]] = {}
        for (peer, channel), sender in sorted(senders.items()):
            channels.setdefault(peer, {})[channel] = sender
        found = (_sample(peer, its) for peer, its in channels.items())
        return tuple(sample for sample in found if sample is not None)

    def probe(self, probe: Probe) -> None:
        """Queue a probe of the rate of the path to a peer. Returns at once."""
        self._prober.probe(probe)

    def _sends(self, peer: str) -> bool:
        """Return whether frames to a peer wait or are on their way, on any channel."""
        with self._guard:
            senders = [sender for (its, _), sender in self._senders.items() if its == peer]
        return not all(sender.idle() for sender in senders)

    def sending_s(self) -> float:
        """Return the seconds that all connections together have spent in sending."""
        with self._guard:
            return self._dropped_s + sum(sender.sending_s for sender in self._senders.values())

    def drop(self, peer: str) -> None:
        """End the connections to a peer at once. Later frames for it go to its address in `roster` at that time."""
        with self._guard:
            senders = [self._senders.pop(hop) for hop in list(self._senders) if hop[0] == peer]
            self._dropped_s += sum(sender.sending_s for sender in senders)
        for sender in senders:
            sender.abort()
            sender.join(0)

    def drain(self, timeout_s: float, await_channel: Callable[[int, float], None] | None = None) -> tuple[str, ...]:
        """Wait until the peers have read all that was sent to them, then close the connections.

        Channel 0 closes last, because peers take its end for this member's leaving.

        Args:
            timeout_s: The longest wait in seconds for the peers to read, and again for `await_channel`.
            await_channel: Waits until no peer sends here on channel n any more, because frames from there are forwarded
                on channel n - 1. Called with n and the seconds left. None where nobody sends frames to forward.

        Returns:
            The peers that did not read everything in time.
        """
        deadline = await_until = time.monotonic() + timeout_s
        late: set[str] = set()
        with self._guard:
            self._leaving = True
        self._prober.close()
        self._start_ups.close()
        for channel in sorted({channel for _, channel in self._hops()}, reverse=True):
            if channel and await_channel:
                began = time.monotonic()
                await_channel(channel + 1, await_until - began)
                deadline += time.monotonic() - began  # peers read at once, and may leave much later
            with self._guard:
                senders = [sender for (_, its), sender in self._senders.items() if its == channel]
            for sender in senders:
                sender.finish()
            late.update(sender.peer for sender in senders if not sender.join(deadline - time.monotonic()))
        return tuple(sorted(late))

    def close(self) -> None:
        """Close the connections to peers at once."""
        with self._guard:
            self._leaving = True
            senders = list(self._senders.values())
        self._prober.close()
        self._start_ups.close()
        for sender in senders:
            sender.abort()
        for sender in senders:
            sender.join(0)

    def _table(self, frame: Frame) -> RouteTable:
        table = self._tables.get(frame.table)
        if table is None:
            raise FrameError(
                f"a frame uses the routes of table {frame.table}, which this member does not hold",
                rule="unknown-table",
                given=frame.table,
            )
        return table

    def _hops(self) -> list[Hop]:
        with self._guard:
            return list(self._senders)

    def _sender(self, hop: Hop) -> Sender:
        peer, channel = hop
        with self._guard:
            sender = self._senders.get(hop)
            if sender is None or (sender.failure and not sender.connected):
                if sender is not None:
                    sender.abort()  # one of its connections may be open, and its queue may relieve another
                    self._dropped_s += sender.sending_s
                direct = self._senders.get((peer, DIRECT))
                queue = SendQueue(direct.queue if channel and direct else None)
                if channel == DIRECT:
                    for (other, auxiliary), its in self._senders.items():
                        if other == peer and auxiliary:
                            its.queue.defer_to(queue)
                sender = Sender(peer, self._roster[peer], self._settings, self._wire, self._on_failure, channel, queue)
                self._senders[hop] = sender
                self._start_ups.start()
            return sender

    def _connections(self) -> list[tuple[socket.socket, StartUp]]:
        with self._guard:
            senders = list(self._senders.values())
        return [each for sender in senders for each in sender.start_ups()]


def _sample(peer: str, channels: Mapping[int, Sender]) -> PeerSample | None:
    grown = {channel: info for channel, sender in channels.items() if (info := sender.sample()) is not None}
    waits = [sender.queue.queued() for sender in channels.values()]
    if not grown:
        return None
    path = tcpinfo.together(list(grown.values()))
    frames = sum(taken for _, taken in waits)
    return PeerSample(
        peer=peer,
        bytes=path.bytes_acked,
        busy_s=path.busy_s,
        rtt_s=path.min_rtt_s,
        retransmits=path.retransmits,
        delivery_bytes_s=path.delivery_bytes_s,
        queued_s=sum(waited for waited, _ in waits) / frames if frames else 0.0,
        auxiliary_bytes=sum(info.bytes_acked for channel, info in grown.items() if channel != DIRECT),
    )
