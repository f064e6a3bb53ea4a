"""The events of a member: messages put together from frames, finished steps, lost peers, the controller's orders."""

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

#: The most incomplete messages of one peer, for each of its connections. Parts of a message leave in order, so over one
#: connection one message is incomplete; over several, a part that is late on one connection keeps a message incomplete
#: whose other parts have come over the others.
OPEN_MESSAGES = 8


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A message of a peer is complete."""

    sender: str
    message: Message
    #: When it became complete, in seconds of the monotonic clock.
    at_s: float


@dataclass(frozen=True, slots=True)
class PeerLost:
    """All connections from a peer have ended, or one of them by an error."""

    peer: str
    why: str


@dataclass(frozen=True, slots=True)
class LossDue:
    """REPORT_LOSS_S have passed since a peer was lost. The loss is reported unless the controller removed the peer."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerCut:
    """The controller says that a peer has died, and that the others go on without it."""

    peer: str


@dataclass(frozen=True, slots=True)
class GraphPrepared:
    """The controller asks for a promise, to prepare another graph; see Participant.promise."""

    ahead: int


@dataclass(frozen=True, slots=True)
class GraphCommitted:
    """The controller says that the graph changes, or that it stays."""

    #: The first iteration with the new graph.
    iteration: int
    #: This member's neighbours in the new graph; None if the graph stays.
    neighbours: Neighbours | None
    #: The addresses of the members that join with the new graph, by name.
    roster: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """This member fails, for the reason that the error gives."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class ModelSent:
    """A whole model was sent to a peer, so the next one may follow."""

    peer: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A local step is done, with its change to the parameters."""

    step: Step
    change: Tensor


Event = (
    MessageArrived
    | PeerLost
    | LossDue
    | PeerCut
    | GraphPrepared
    | GraphCommitted
    | MemberFailed
    | ModelSent
    | StepFinished
)


@dataclass(slots=True)
class _Open:
    """A message of which some frames have not arrived yet."""

    body: bytearray
    #: Bytes that are missing.
    left: int


class Inbox:
    """Takes frames from a Listener, and gives `Event`s to the member's driver.

    A frame says how long its message is, and no message is longer than a model. So the memory that a peer can make this
    member set aside is bounded, whatever its frames claim.

    A member that died may join again. The generation in its greeting, which is the iteration in which it joined, tells
    its memberships apart. Frames of a membership that the controller ended are refused, however late they arrive. A
    member that joins after this one is accepted only once the controller has announced it. Otherwise a member could
    claim a later generation, and when it really joins, that membership would be taken for an old one.

    Attributes:
        received_bytes: Bytes of messages received, by peer.
    """

    def __init__(
        self,
        codec: MessageCodec,
        streams: int = 1,
        first: int = 0,
        timeout_s: float = 0.0,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make an empty inbox.

        Args:
            codec: Unpacks messages.
            streams: Connections of each peer.
            first: The iteration in which this member joined.
            timeout_s: The longest wait in seconds for the controller to announce a peer that has sent its greeting.
            clock: Measures waits, and runs reminders.
        """
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
        self._newest: dict[str, int] = dict.fromkeys(codec.members, first)  # announced by the controller
        self._oldest: dict[str, int] = dict.fromkeys(codec.members, 0)

    def put(self, event: Event) -> None:
        """Add an event. Any thread may call it."""
        self._events.put(event)

    def put_after(self, seconds: float, event: Callable[[], Event]) -> None:
        """Make an event after some seconds and add it; at once for 0 seconds."""
        if not seconds:
            self.put(event())
            return
        self._clock.call_later(seconds, lambda: self.put(event()))

    def take(self, timeout_s: float) -> Event | None:
        """Wait for the next event. Returns None if none comes within `timeout_s`, which may be infinite."""
        try:
            return self._events.get(timeout=None if timeout_s == inf else max(timeout_s, 0.0))
        except Empty:
            return None

    def cut(self, peer: str) -> None:
        """Refuse a peer's frames from now on, because the controller says that the peer has died."""
        with self._guard:
            self._oldest[peer] = self._newest[peer] + 1
            for key in [key for key in self._open if key[0] == peer]:
                del self._open[key]
            self.put(PeerCut(peer))

    def commit(self, committed: GraphCommitted) -> None:
        """Add the controller's decision on the graph, and accept the members that join with it."""
        with self._guard:
            for peer in committed.roster:
                self._newest[peer] = max(self._newest[peer], committed.iteration)
            self._guard.notify_all()
            self.put(committed)

    def close(self) -> None:
        """Wake threads blocked in `receiver`."""
        with self._guard:
            self._closed = True
            self._guard.notify_all()

    # -- called by the Listener, on a thread for each connection

    def receiver(self, hello: Greeting) -> Incoming:
        """Return the receiver of a peer's frames; wait for a generation that the controller has not announced yet.

        Raises:
            FrameError: The peer is not a member, or not of that generation.
        """
        peer, generation = hello.member, hello.generation
        if peer not in self._codec.members:
            raise FrameError(f"{peer!r} is not a member of this run", rule="unknown-member", member=peer)
        with self._guard:
            self._clock.wait_for(self._guard, lambda: self._closed or generation <= self._newest[peer], self._timeout_s)
            if generation > self._newest[peer]:
                told = f"the newest iteration announced by the controller is {self._newest[peer]}"
                raise FrameError(
                    f"{peer} claims to have joined in iteration {generation}; {told}",
                    rule="unknown-generation",
                    member=peer,
                    given=generation,
                )
        return Incoming(self, generation)

    def serve(self, connection: socket.socket) -> None:
        """Refuse a request, because members that gossip send messages only. Raises FrameError."""
        raise FrameError("a peer asked to fetch something; members that gossip send messages only")

    def take_part(self, generation: int, received: Received) -> None:
        """Store a part of a message, and add the message once it is complete.

        Raises:
            FrameError: The part does not fit its message, or too many messages are incomplete.
        """
        peer, header = received.source, PartHeader.unpack(received.frame.header)
        size, stop = header.size, header.offset + len(received.payload)
        if size > self._codec.most_bytes or stop > size:
            raise FrameError(f"a frame has bytes {header.offset} to {stop} of a message of {size} bytes")
        with self._guard:
            self._check(peer, generation)
            opened = self._open[peer, generation]
            whole = opened.get(header.sequence)
            if whole is None:  # to zero a model's memory for each part would cost more than the parts
                whole = opened[header.sequence] = _Open(bytearray(size), size)
            if len(whole.body) != size:
                raise FrameError(f"message {header.sequence} has {len(whole.body)} bytes; another frame says {size}")
            if len(opened) > OPEN_MESSAGES * self._streams:
                raise FrameError(f"{peer} left {len(opened)} messages incomplete at once")
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
        """Handle the end of one of a peer's connections. Without an error, only the last one's end loses the peer."""
        with self._guard:
            self._ended[peer, generation] += 1
            last = self._ended[peer, generation] == self._streams
            if (error or last) and generation >= self._oldest[peer]:
                self.put(PeerLost(peer, error or "closed its connection"))

    def _check(self, peer: str, generation: int) -> None:
        if generation < self._oldest[peer]:
            raise FrameError(f"{peer} was removed from the graph", rule="cut", member=peer)


class Incoming:
    """Passes the frames of one connection to the inbox, with the generation of the peer that sends them."""

    header_bytes = HEADER_BYTES
    most_bytes = PART_BYTES
    outbox: Outbox | None = None

    def __init__(self, inbox: Inbox, generation: int) -> None:
        self._inbox = inbox
        self._generation = generation

    def opened(self, peer: str, channel: int) -> bool:
        """Return whether the channel is DIRECT: gossip uses no auxiliary routes."""
        return channel == DIRECT

    def take(self, received: Received) -> None:
        """Store a part of a message. Raises FrameError if it does not fit its message, or the peer was removed."""
        self._inbox.take_part(self._generation, received)

    def closed(self, peer: str, channel: int, error: str) -> None:
        """Handle the end of the connection."""
        self._inbox.ended(peer, self._generation, error)
