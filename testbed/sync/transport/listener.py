"""Where peers connect: one thread accepts, one per connection reads frames and hands them on."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from typing import NamedTuple, Protocol

from testbed.protocol import Train
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import frame, sockets, tcpinfo
from testbed.sync.transport.arrivals import Arrivals
from testbed.sync.transport.frame import DIRECT, FETCH, PROBE, Frame, FrameFormat, Greeting
from testbed.sync.transport.memory import Scratch
from testbed.sync.transport.outbox import Outbox
from testbed.sync.transport.probe import FRAME_BYTES
from testbed.sync.transport.settings import CLOSE_S

log = logging.getLogger(__name__)

#: Connections at once that have not said yet who they are. Each costs a thread; garbage must not cost more.
MAX_STRANGERS = 128

#: A path may be away just while a greeting is on its way.
GREETING_S = 60.0


class Received(NamedTuple):
    """A frame from the member `source`, whose `payload` is only lent. It took `bytes`, and `seconds` from its head to
    its end."""

    source: str
    frame: Frame
    payload: memoryview
    bytes: int
    seconds: float


class Receiver(Protocol):
    """What takes frames whose headers have `header_bytes` and whose payloads `most_bytes` at most.

    `outbox` forwards what came on an auxiliary route and goes further; None where there are no such routes.
    """

    header_bytes: int
    outbox: Outbox | None

    @property
    def most_bytes(self) -> int:
        """The longest payload."""

    def opened(self, peer: str, channel: int) -> bool:
        """Whether a peer may send frames on a channel from now on."""

    def take(self, received: Received) -> None:
        """Take a frame that arrived as it was sent, once that may be. FrameError ends the connection."""

    def closed(self, peer: str, channel: int, error: str) -> None:
        """A connection of the peer ended: between two frames as it should (no `error`), or else."""


class Endpoint(Protocol):
    """Knows what connections are for."""

    def receiver(self, hello: Greeting) -> Receiver:
        """What takes the frames of a peer; waits where that is not known yet. SyncError when nothing does."""

    def serve(self, connection: socket.socket) -> None:
        """Answer a peer that asks for something."""


class Listener:
    """Reads frames from whoever greets with the run's secret and a member's name.

    What comes from elsewhere, or is no frame, ends its own connection and nothing else; `refused` counts those.
    """

    def __init__(self, accepting: socket.socket, secret: str, endpoint: Endpoint) -> None:
        self.refused = 0
        self._accepting = accepting
        self._secret = secret
        self._endpoint = endpoint
        self._arrivals = Arrivals()
        self._guard = threading.Lock()
        self._strangers: set[socket.socket] = set()
        self._known: dict[Greeting, socket.socket] = {}
        self._threads: set[threading.Thread] = set()
        self._acceptor = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._acceptor.start()

    def arrivals(self) -> dict[str, tuple[Train, ...]]:
        """The trains that came from each peer since the last call."""
        return self._arrivals.take()

    def close(self) -> None:
        """Stop listening, end every connection, and wait for their threads.

        An interpreter with PyTorch that ends while another thread wakes up aborts, so none may be left.
        """
        sockets.close_now(self._accepting)
        self._acceptor.join(CLOSE_S)
        with self._guard:
            connections = [*self._strangers, *self._known.values()]
            threads = set(self._threads)
        for connection in connections:
            sockets.close_now(connection)
        for thread in threads:
            thread.join(CLOSE_S)

    def _accept(self) -> None:
        with suppress(OSError):  # how a closed listener tells us
            while True:
                connection, _ = self._accepting.accept()
                with self._guard:
                    welcome = len(self._strangers) < MAX_STRANGERS
                    if welcome:
                        self._strangers.add(connection)
                if welcome:
                    self._start(connection)
                else:
                    self._refuse(connection)

    def _start(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._run, args=(connection,), name="from", daemon=True)
        with self._guard:
            self._threads.add(thread)
        thread.start()

    def _run(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        finally:
            with self._guard:
                self._threads.discard(threading.current_thread())

    def _serve(self, connection: socket.socket) -> None:
        try:
            hello = self._greeted(connection)
            threading.current_thread().name = f"from {hello.member}, {hello.channel}.{hello.stream}"
            if hello.channel == FETCH:
                with connection:
                    self._endpoint.serve(connection)
                return
            receiver = self._endpoint.receiver(hello)
            self._know(hello, connection)
        except (OSError, SyncError):
            self._refuse(connection)
            return
        finally:
            with self._guard:
                self._strangers.discard(connection)
        if not receiver.opened(hello.member, hello.channel):
            self._forget(hello, connection)
            return
        reason = ""
        try:
            if hello.channel:
                connection.sendall(frame.WELCOME)
            self._read(receiver, hello, connection)
        except (OSError, SyncError) as error:
            reason = str(error) or repr(error)
        except Exception as error:  # whatever came of what a peer sent, the peer is told of by name
            log.exception("what came from %s", hello.member)
            reason = f"what it sent could not be dealt with: {error!r}"
        self._forget(hello, connection)
        receiver.closed(hello.member, hello.channel, reason)

    def _forget(self, hello: Greeting, connection: socket.socket) -> None:
        with self._guard:
            del self._known[hello]
        sockets.close_now(connection)

    def _refuse(self, connection: socket.socket) -> None:
        with self._guard:
            self.refused += 1
        sockets.close_now(connection)

    def _greeted(self, connection: socket.socket) -> Greeting:
        """Who it is that connected; FrameError when it does not greet as one of us."""
        connection.settimeout(GREETING_S)
        head = memoryview(bytearray(frame.GREETING.size))
        sockets.receive(connection, head)
        name = memoryview(bytearray(frame.name_length(head, self._secret)))
        sockets.receive(connection, name)
        connection.settimeout(None)
        return frame.greeted(head, name)

    def _know(self, hello: Greeting, connection: socket.socket) -> None:
        """FrameError when such a connection is here already."""
        with self._guard:
            if hello in self._known:
                raise FrameError(f"{hello.member} is connected already")
            self._known[hello] = connection

    def _read(self, receiver: Receiver, hello: Greeting, connection: socket.socket) -> None:
        """Hand on frames until the peer closes between two of them. What a probe brings was measured, and is of no
        further use."""
        probing = hello.channel == PROBE
        wire = FrameFormat(0 if probing else receiver.header_bytes)
        raw = memoryview(bytearray(wire.size))
        scratch = Scratch()
        sockets.stamp(connection)
        with self._arrivals.timing(hello.member, lambda: tcpinfo.out_of_order(connection)) as timing:
            while sockets.receive_or_end(connection, raw):
                head = wire.unpack(raw)
                most = FRAME_BYTES if probing else receiver.most_bytes
                if head.length > most:
                    raise FrameError(f"a frame of {head.length} bytes; those here have {most} at most")
                began = time.monotonic()
                payload = scratch.room(head.length)
                timing.begin(head, wire.size)
                sockets.receive_timed(connection, payload, timing.note)
                head.verify(payload)
                if not probing:
                    seconds = time.monotonic() - began
                    hand_on(receiver, hello, Received(hello.member, head, payload, wire.size + head.length, seconds))
                if DIRECT < hello.channel < PROBE:
                    connection.sendall(frame.TAKEN)


def hand_on(receiver: Receiver, hello: Greeting, received: Received) -> None:
    """Give a frame that came on a connection to its receiver, or to the next member on its route."""
    peer, head = received.source, received.frame
    if head.channel != hello.channel:
        raise FrameError(f"a frame with {head.left} members to go on channel {hello.channel}")
    if not head.route:
        receiver.take(received)
        return
    if receiver.outbox is None:
        raise FrameError("a frame on an auxiliary route, where there are none")
    source = receiver.outbox.origin(peer, head)
    if head.left:
        receiver.outbox.forward(peer, head, received.payload)
    else:
        receiver.take(received._replace(source=source))
