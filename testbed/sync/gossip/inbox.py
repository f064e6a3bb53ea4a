"""What comes to a member: frames that make up messages, steps that are done, peers that are gone."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from queue import Empty, SimpleQueue

from torch import Tensor

from testbed.sync.allreduce.round import Delivery
from testbed.sync.errors import FrameError
from testbed.sync.gossip.effects import Step
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import MessageCodec, WireMessage
from testbed.sync.gossip.neighbours import Neighbours
from testbed.sync.transport.frame import Frame, FrameFormat, Greeting, Kind

#: Messages of one peer that may be half there. Chunks of a message leave in order, so over one connection it is one;
#: over several, what is on its way in one of them keeps messages open that the others have brought the rest of.
OPEN_MESSAGES = 8


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A message from `sender`, whole since `at_s` (monotonic clock)."""

    sender: str
    message: Message
    at_s: float


@dataclass(frozen=True, slots=True)
class Gone:
    """All connections from `peer` have ended, or one of them by an error."""

    peer: str
    why: str


@dataclass(frozen=True, slots=True)
class Cut:
    """The controller's word that `peer` has died, and that the others go on without it."""

    peer: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The controller's question how far this member can go on; see Participant.promise."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Turned:
    """The controller's word that from `iteration` on the graph is another; `None` where it stays as it is.

    `roster` says where they listen who come with it.
    """

    iteration: int
    neighbours: Neighbours | None
    roster: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """This member can't go on."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Sent:
    """A model has left for `peer`: there is room for the next."""

    peer: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """A local step is done: `change` is what it makes of the parameters."""

    step: Step
    change: Tensor


Event = MessageArrived | Gone | Cut | Asked | Turned | MemberFailed | Sent | Stepped


@dataclass(slots=True)
class _Open:
    """A message that is not whole yet: `left` of its bytes are to come."""

    body: bytearray
    left: int


class Inbox:
    """The receiving end that a Listener hands frames to; whoever drives the member takes `Event`s out.

    A frame says how long its message is before a byte of it is taken, and nothing longer than a model is: so what a
    peer makes this member set aside is bounded, whatever the frames claim.

    A member that died may come again. Its greeting says by its era which one it is: the iteration in which it came.
    Nothing is taken in of one that was cut, however late it arrives.
    """

    def __init__(self, codec: MessageCodec, streams: int = 1) -> None:
        self.wire = FrameFormat(len(codec.members))
        self.received_bytes: Counter[str] = Counter()
        self._codec = codec
        self._streams = streams
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._guard = threading.Lock()
        self._open: dict[tuple[str, int], dict[int, _Open]] = defaultdict(dict)
        self._ended: Counter[tuple[str, int]] = Counter()
        self._newest: dict[str, int] = dict.fromkeys(codec.members, 0)
        self._oldest: dict[str, int] = dict.fromkeys(codec.members, 0)

    def put(self, event: Event) -> None:
        """Have the event taken; any thread may."""
        self._events.put(event)

    def take(self, timeout_s: float) -> Event | None:
        """The next event; None when none comes within `timeout_s`, which may be infinite."""
        try:
            return self._events.get(timeout=None if timeout_s == inf else max(timeout_s, 0.0))
        except Empty:
            return None

    def cut(self, peer: str) -> None:
        """The controller's word that the peer has died: from now on nothing of it is taken in."""
        with self._guard:
            self._oldest[peer] = self._newest[peer] + 1
            self.put(Cut(peer))

    def turn(self, turned: Turned) -> None:
        """The controller's word of another graph, and of who comes with it."""
        with self._guard:
            for peer in turned.roster:
                self._newest[peer] = max(self._newest[peer], turned.iteration)
            self.put(turned)

    # -- what a Listener calls, from a thread for each connection

    def receiver(self, hello: Greeting) -> Incoming:
        """Where a member's frames go; FrameError for who is none."""
        if hello.member not in self._codec.members:
            raise FrameError(f"{hello.member!r} is no member")
        with self._guard:
            self._newest[hello.member] = max(self._newest[hello.member], hello.era)
        return Incoming(self, hello.era)

    def serve(self, connection: socket.socket) -> None:
        """Nothing can be fetched here: FrameError."""
        raise FrameError("members without a centre hand nothing over but messages")

    def admit(self, peer: str, era: int, head: Frame) -> Delivery:
        """Where a frame's bytes belong; FrameError when it can't be part of a message."""
        if head.kind is not Kind.MESSAGE:
            raise FrameError(f"a {head.kind.name} frame of an all-reduce, where members exchange messages")
        if head.elements > self._codec.most_bytes or head.offset + head.length > head.elements:
            raise FrameError(f"bytes {head.offset} to {head.offset + head.length} of a message of {head.elements}")
        with self._guard:
            self._check(peer, era)
            opened = self._open[peer, era]
            open_ = opened.setdefault(head.epoch, _Open(bytearray(head.elements), head.elements))
            if len(open_.body) != head.elements:
                raise FrameError(
                    f"message {head.epoch} has {len(open_.body)} bytes, and in another frame another number"
                )
            if len(opened) > OPEN_MESSAGES * self._streams:
                raise FrameError(f"{len(opened)} messages half there at once")
        into = memoryview(open_.body)[head.offset : head.offset + head.length]
        return Delivery(into, lambda payload: self._take(peer, era, head, open_))

    def _take(self, peer: str, era: int, head: Frame, open_: _Open) -> None:
        with self._guard:
            self.received_bytes[peer] += head.length
            open_.left -= head.length
            if open_.left > 0:
                return
            self._open[peer, era].pop(head.epoch, None)
        whole = WireMessage(head.tree, head.round, head.successor, head.weight, memoryview(open_.body))
        message = self._codec.unpack(whole)
        with self._guard:
            self._check(peer, era)
            self.put(MessageArrived(peer, message, time.monotonic()))

    def ended(self, peer: str, era: int, error: str) -> None:
        """A connection of the peer ended. One that ended well may have ended before others to the same peer."""
        with self._guard:
            self._ended[peer, era] += 1
            last = self._ended[peer, era] == self._streams
            if (error or last) and era >= self._oldest[peer]:
                self.put(Gone(peer, error or "closed its connection"))

    def _check(self, peer: str, era: int) -> None:
        if era < self._oldest[peer]:
            raise FrameError(f"{peer} was cut out of the graph")


class Incoming:
    """What a Listener hands a connection's frames to: the inbox, and which of the member's lives they are from."""

    def __init__(self, inbox: Inbox, era: int) -> None:
        self.wire = inbox.wire
        self._inbox = inbox
        self._era = era

    def come(self, lane: int) -> bool:
        """Messages travel directly, in lane 0."""
        return lane == 0

    def admit(self, peer: str, lane: int, head: Frame) -> Delivery:
        """Where a frame's bytes belong; FrameError when it can't be part of a message, or the peer was cut."""
        return self._inbox.admit(peer, self._era, head)

    def gone(self, peer: str, lane: int, error: str) -> None:
        """A connection of the peer ended."""
        self._inbox.ended(peer, self._era, error)
