"""All that this member sends: a sender for each next hop, and lanes for auxiliary routes.

    round --put--> backlog of b ----------------------> b               lane 0: frames to b itself
                      `-spill-> lane 2 of v --> v --forward--> lane 1 of b --> b
                                     <--taken--'  <--taken-----------------'

A frame on an auxiliary route travels on connections of its own. There a frame never waits for a round to begin (see
`Round.steady`), so it holds up none behind it. Lane n of a peer carries what n - 1 more members forward. A connection
carries one frame at a time, until word has come back that it is at the end of its route: a route that is full beyond
its first hop, where its source can't see it, takes over no more. Before that, chunks lay in the buffers of second hops,
and rounds that went as planned took 15 % longer than without auxiliary routes (simulated). A forwarder sets aside a
chunk for each connection, and since lane n waits for lane n - 1 alone, no cycle of lanes can come to wait for itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from testbed.plan import Plan, Route
from testbed.protocol import PeerSample
from testbed.sync.errors import FrameError
from testbed.sync.transport import tcpinfo
from testbed.sync.transport.frame import PROBE_LANE, Frame, FrameFormat
from testbed.sync.transport.probe import send_probe
from testbed.sync.transport.send_queue import Backlog, Feed, Priority, nothing, unchanged
from testbed.sync.transport.sender import Sender, Way

#: Enough that a connection has its next frame at hand while one is being sent.
AT_HAND = 1

#: A peer and the lane to it.
Hop = tuple[str, int]


class Outbox:
    """The senders of one member. `roster` maps every member to where it listens. Any thread may call."""

    def __init__(
        self,
        way: Way,
        wire: FrameFormat,
        roster: Mapping[str, tuple[str, int]],
        on_failure: Callable[[str, str], None],
    ) -> None:
        self.head_bytes = wire.size
        self._way = way
        self._wire = wire
        self._roster = roster
        self._on_failure = on_failure
        self._guard = threading.Lock()
        self._senders: dict[Hop, Sender] = {}
        self._dropped_s = 0.0

    def connect(self, plan: Plan) -> list[Sender]:
        """The senders to all that this member sends to under `plan`, new ones among them already connecting."""
        me = self._way.member
        hops: set[Hop] = {(peer, 0) for peer in plan.next_hops(me)}
        for route in plan.auxiliary:
            way = (route.source, *route.via, route.target)
            if me in way[:-1]:
                position = way.index(me)
                hops.add((way[position + 1], len(way) - 1 - position))
        return [self._sender(hop) for hop in sorted(hops)]

    def follow(self, plan: Plan) -> None:
        """From now on let the auxiliary routes of `plan` take over, and no others."""
        feeds: dict[Hop, list[Feed]] = {hop: [] for hop in self._hops() if hop[1]}
        for number, route in enumerate(plan.auxiliary, 1):
            if route.source == self._way.member and route.target in plan.next_hops(self._way.member):
                hop = route.via[0], len(route.via) + 1
                feeds.setdefault(hop, []).append(
                    Feed(self._sender((route.target, 0)).backlog, plan.epoch, number, len(route.via))
                )
        for hop, fed in feeds.items():
            self._sender(hop).backlog.feed(fed)

    def put(
        self,
        peer: str,
        priority: Priority,
        frame: Frame,
        payload: memoryview,
        sent: Callable[[], None] = nothing,
        spills: bool = False,
        sealed: Callable[[Frame], Frame] = unchanged,
    ) -> None:
        """Have a frame sent to `peer`, directly or, if it `spills`, over an auxiliary route; as `sealed` has it
        then."""
        sender = self._sender((peer, 0))
        sender.backlog.put(priority, frame, payload, sent, spills, sealed)
        if sender.failure:
            self._on_failure(peer, sender.failure)

    def crowded(self, peer: str) -> bool:
        """Whether what is put for `peer` now would only wait: behind other frames, or in a queue on the path.

        Not where an auxiliary route would take it over.
        """
        sender = self._sender((peer, 0))
        if sender.backlog.watched:
            return False
        return len(sender.backlog) >= AT_HAND or sender.queueing()

    def forward(self, plan: Plan, peer: str, frame: Frame) -> Callable[[memoryview], None]:
        """What passes on a frame that `peer` sent, and that is not for this member, and returns once it was taken.

        FrameError unless the plan has that route and it leads from `peer` over here.
        """
        route = self.route(plan, peer, frame)
        way = (*route.via, route.target)
        hop = way[len(way) - frame.left], frame.left
        onward = self._sender(hop)
        priority = (frame.round, 0, int(frame.kind), frame.tree)
        passed = frame._replace(left=frame.left - 1)
        return lambda payload: onward.backlog.pass_on(priority, passed, payload)

    def route(self, plan: Plan, peer: str, frame: Frame) -> Route:
        """The route of a frame that `peer` sent here; FrameError unless the plan has it and it leads from there."""
        if frame.route > len(plan.auxiliary):
            raise FrameError(f"the plan of epoch {plan.epoch} has no auxiliary route {frame.route}")
        route = plan.auxiliary[frame.route - 1]
        way = (route.source, *route.via, route.target)
        here = len(way) - 1 - frame.left
        if here < 1 or way[here] != self._way.member or way[here - 1] != peer:
            raise FrameError(f"auxiliary route {route} has no hop from {peer} with {frame.left} members to go")
        return route

    def samples(self) -> tuple[PeerSample, ...]:
        """What each next hop's path did since the last call."""
        with self._guard:
            senders = dict(self._senders)
        lanes: dict[str, dict[int, Sender]] = {}
        for (peer, lane), sender in sorted(senders.items()):
            lanes.setdefault(peer, {})[lane] = sender
        found = (_sample(peer, its) for peer, its in lanes.items())
        return tuple(sample for sample in found if sample is not None)

    def probe(self, peer: str, most: int, seconds: float) -> None:
        """Send `peer` what means nothing for `seconds`, at most `most` bytes; returns at once."""
        sender = self._sender((peer, PROBE_LANE))
        send_probe(sender.backlog, most, seconds, sender.queueing)

    def sending_s(self) -> float:
        """Seconds that all connections together have spent in sending since they began."""
        with self._guard:
            return self._dropped_s + sum(sender.sending_s for sender in self._senders.values())

    def drop(self, peer: str) -> None:
        """End the connections to a peer at once. What is put for it later goes to where `roster` says it is then."""
        with self._guard:
            senders = [self._senders.pop(hop) for hop in list(self._senders) if hop[0] == peer]
            self._dropped_s += sum(sender.sending_s for sender in senders)
        for sender in senders:
            sender.abort()
            sender.join(0)

    def drain(self, timeout_s: float, await_lane: Callable[[int, float], None]) -> None:
        """Wait until the peers have read all that was sent to them, then close the connections to them.

        `await_lane(n, seconds)` waits until nobody sends here in lane n any more: what comes there is to go on in
        lane n - 1. Peers learn that this member is gone from lane 0, which closes last.
        """
        deadline = time.monotonic() + timeout_s
        with self._guard:
            probing = [self._senders.pop(hop) for hop in list(self._senders) if hop[1] == PROBE_LANE]
        for sender in probing:
            sender.abort()
            sender.join(0)
        for lane in sorted({lane for _, lane in self._hops()}, reverse=True):
            if lane:
                await_lane(lane + 1, deadline - time.monotonic())
            with self._guard:
                senders = [sender for (_, its), sender in self._senders.items() if its == lane]
            for sender in senders:
                sender.finish()
            for sender in senders:
                sender.join(deadline - time.monotonic())

    def close(self) -> None:
        """Close the connections to peers at once."""
        with self._guard:
            senders = list(self._senders.values())
        for sender in senders:
            sender.abort()
        for sender in senders:
            sender.join(0)

    def _hops(self) -> list[Hop]:
        with self._guard:
            return list(self._senders)

    def _sender(self, hop: Hop) -> Sender:
        peer, lane = hop
        with self._guard:
            sender = self._senders.get(hop)
            if sender is None or (sender.failure and not sender.connected):
                beside = self._senders.get((peer, 0))
                backlog = Backlog(beside.backlog if lane and beside else None)
                on_failure = self._on_failure if lane != PROBE_LANE else _unmissed
                sender = Sender(peer, self._roster[peer], self._way, self._wire, on_failure, lane, backlog)
                self._senders[hop] = sender
            return sender


def _unmissed(_peer: str, _reason: str) -> None:
    """A probe that can't be sent has found out enough."""


def _sample(peer: str, lanes: Mapping[int, Sender]) -> PeerSample | None:
    grown = {lane: info for lane, sender in lanes.items() if (info := sender.sample()) is not None}
    waits = [sender.backlog.queued() for sender in lanes.values()]
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
        auxiliary_bytes=sum(info.bytes_acked for lane, info in grown.items() if 0 < lane < PROBE_LANE),
    )
