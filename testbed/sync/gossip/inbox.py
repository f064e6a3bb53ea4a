"""What comes to a member: frames that make up messages, steps that are done, peers that are gone."""

from __future__ import annotations

import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from queue import Empty, SimpleQueue

from torch import Tensor

from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.errors import FrameError
from testbed.sync.gossip.effects import Step
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import HEADER_BYTES, PART_BYTES, MessageCodec, PartHeader, WireMessage
from testbed.sync.gossip.neighbours import Neighbours
from testbed.sync.transport import DIRECT, Greeting, Outbox, Received

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
class PeerLost:
    """All connections from `peer` have ended, or one of them by an error."""

    peer: str
    why: str


@dataclass(frozen=True, slots=True)
class PeerCut:
    """The controller's word that `peer` has died, and that the others go on without it."""

    peer: str


@dataclass(frozen=True, slots=True)
class GraphPrepared:
    """The controller's question how far this member can go on; see Participant.promise."""

    ahead: int


@dataclass(frozen=True, slots=True)
class GraphCommitted:
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
class ModelSent:
    """A model has left for `peer`: there is room for the next."""

    peer: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A local step is done: `change` is what it makes of the parameters."""

    step: Step
    change: Tensor


Event = MessageArrived | PeerLost | PeerCut | GraphPrepared | GraphCommitted | MemberFailed | ModelSent | StepFinished


@dataclass(slots=True)
class _Open:
    """A message that is not whole yet: `left` of its bytes are to come."""

    body: bytearray
    left: int


class Inbox:
    """The receiving end that a Listener hands frames to; whoever drives the member takes `Event`s out.

    A frame says how long its message is, and nothing is longer than a model is: so what a peer makes this member set
    aside is bounded, whatever the frames claim.

    A member that died may come again. Its greeting says by its generation which one it is: the iteration in which it
    came.
    Nothing is taken in of one that was cut, however late it arrives. Who comes later than this member did, in the
    iteration `first`, is heard from when the controller has told of it, for which it may have to wait `timeout_s`: a
    member can't claim a generation, and have the next one that it comes with taken for an old one.
    """

    def __init__(
        self,
        codec: MessageCodec,
        streams: int = 1,
        first: int = 0,
        timeout_s: float = 0.0,
        clock: Clock = SYSTEM,
    ) -> None:
        self.received_bytes: Counter[str] = Counter()
        self._codec = codec
        self._streams = streams
        self._clock = clock
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._timeout_s = timeout_s
        self._guard = threading.Condition()
        self._closed = False
        self._open: dict[tuple[str, int], dict[int, _Open]] = defaultdict(dict)
        self._ended: Counter[tuple[str, int]] = Counter()
        self._newest: dict[str, int] = dict.fromkeys(codec.members, first)  # that the controller has told of
        self._oldest: dict[str, int] = dict.fromkeys(codec.members, 0)

    def put(self, event: Event) -> None:
        """Have the event taken; any thread may."""
        self._events.put(event)

    def put_after(self, seconds: float, event: Callable[[], Event]) -> None:
        """Have the event taken that there is in so many seconds, if the member is still there then."""
        if not seconds:
            self.put(event())
            return
        self._clock.call_later(seconds, lambda: self.put(event()))

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
            for key in [key for key in self._open if key[0] == peer]:
                del self._open[key]
            self.put(PeerCut(peer))

    def commit(self, committed: GraphCommitted) -> None:
        """The controller's word of another graph, and of who comes with it."""
        with self._guard:
            for peer in committed.roster:
                self._newest[peer] = max(self._newest[peer], committed.iteration)
            self._guard.notify_all()
            self.put(committed)

    def close(self) -> None:
        """Let go of who waits to be told of."""
        with self._guard:
            self._closed = True
            self._guard.notify_all()

    # -- what a Listener calls, from a thread for each connection

    def receiver(self, hello: Greeting) -> Incoming:
        """Where a member's frames go; FrameError for who is none, or is not to come in that generation."""
        peer, generation = hello.member, hello.generation
        if peer not in self._codec.members:
            raise FrameError(f"{peer!r} is no member", rule="unknown-member", member=peer)
        with self._guard:
            self._clock.wait_for(self._guard, lambda: self._closed or generation <= self._newest[peer], self._timeout_s)
            if generation > self._newest[peer]:
                told = f"the controller has told of {self._newest[peer]} at most"
                raise FrameError(
                    f"{peer} claims to have come in iteration {generation}; {told}",
                    rule="unknown-generation",
                    member=peer,
                    given=generation,
                )
        return Incoming(self, generation)

    def serve(self, connection: socket.socket) -> None:
        """Nothing can be fetched here: FrameError."""
        raise FrameError("members that gossip hand nothing over but messages")

    def take_part(self, generation: int, received: Received) -> None:
        """Take a part of a message, and the message once it is whole; FrameError when it can't be one."""
        peer, header = received.source, PartHeader.unpack(received.frame.header)
        size, stop = header.size, header.offset + len(received.payload)
        if size > self._codec.most_bytes or stop > size:
            raise FrameError(f"bytes {header.offset} to {stop} of a message of {size}")
        with self._guard:
            self._check(peer, generation)
            opened = self._open[peer, generation]
            whole = opened.get(header.sequence)
            if whole is None:  # zeroing a model's room for each of its parts would cost more than the parts
                whole = opened[header.sequence] = _Open(bytearray(size), size)
            if len(whole.body) != size:
                raise FrameError(f"message {header.sequence} has {len(whole.body)} bytes, and in another frame {size}")
            if len(opened) > OPEN_MESSAGES * self._streams:
                raise FrameError(f"{len(opened)} messages half there at once")
            self.received_bytes[peer] += len(received.payload)
            whole.body[header.offset : stop] = received.payload
            whole.left -= len(received.payload)
            if whole.left > 0:
                return
            del opened[header.sequence]
        packed = WireMessage(header.code, header.number, header.amount, header.weight, memoryview(whole.body))
        message = self._codec.unpack(packed)
        with self._guard:
            self._check(peer, generation)
            self.put(MessageArrived(peer, message, self._clock.monotonic()))

    def ended(self, peer: str, generation: int, error: str) -> None:
        """A connection of the peer ended. One that ended well may have ended before others to the same peer."""
        with self._guard:
            self._ended[peer, generation] += 1
            last = self._ended[peer, generation] == self._streams
            if (error or last) and generation >= self._oldest[peer]:
                self.put(PeerLost(peer, error or "closed its connection"))

    def _check(self, peer: str, generation: int) -> None:
        if generation < self._oldest[peer]:
            raise FrameError(f"{peer} was cut out of the graph", rule="cut", member=peer)


class Incoming:
    """What a Listener hands a connection's frames to: the inbox, and which of the member's lives they are from."""

    header_bytes = HEADER_BYTES
    most_bytes = PART_BYTES
    outbox: Outbox | None = None

    def __init__(self, inbox: Inbox, generation: int) -> None:
        self._inbox = inbox
        self._generation = generation

    def opened(self, peer: str, channel: int) -> bool:
        """Messages travel directly."""
        return channel == DIRECT

    def take(self, received: Received) -> None:
        """Take a part of a message; FrameError when it can't be one, or the peer was cut."""
        self._inbox.take_part(self._generation, received)

    def closed(self, peer: str, channel: int, error: str) -> None:
        """A connection of the peer ended."""
        self._inbox.ended(peer, self._generation, error)
