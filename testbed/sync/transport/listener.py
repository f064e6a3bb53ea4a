"""Where peers connect: one thread accepts, one per connection reads frames and hands them on."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import NamedTuple, Protocol

from testbed.protocol import Train
from testbed.sync.buffers import Scratch
from testbed.sync.errors import FrameError, ImpostorError, SyncError
from testbed.sync.executor import start
from testbed.sync.transport import frame, handshake, sockets, tcpinfo
from testbed.sync.transport.arrivals import Arrivals, Packets
from testbed.sync.transport.frame import DIRECT, FETCH, Frame, FrameFormat, Greeting
from testbed.sync.transport.outbox import Outbox
from testbed.sync.transport.probe import ProbeListener
from testbed.sync.transport.settings import CLOSE_S, TransportSettings

#: Connections at once that have not shown yet who they are. Each costs a thread; garbage must not cost more.
MAX_STRANGERS = 128

#: Connections at once of a member, for each of its streams: a handful of channels in each generation that is about.
MOST_OF_A_STREAM = 64

#: How long a greeting may take, all of it: a path may be away just while it is on its way.
GREETING_S = 60.0

#: Complaints that go into the log: whoever is complained of could go on for ever.
MOST_COMPLAINTS = 100

log = logging.getLogger(__name__)


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
    """Reads frames from other members: from whoever greets with a name and has its key (see handshake.py).

    What comes from elsewhere, or is no frame, ends its own connection and nothing else; `refused` counts those.
    Strangers can't keep members out: of too many, the oldest of the address that most of them come from makes room.
    """

    def __init__(self, accepting: socket.socket, settings: TransportSettings, endpoint: Endpoint) -> None:
        self.refused = 0
        self._accepting = accepting
        self._settings = settings
        self._endpoint = endpoint
        self._arrivals = Arrivals()
        self._probes = ProbeListener(accepting, settings, self._arrivals)
        self._guard = threading.Lock()
        self._strangers: dict[socket.socket, str] = {}  # in the order in which they came, with where from
        self._known: dict[socket.socket, Greeting] = {}
        self._complaints: set[str] = set()
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
        self._probes.close()
        sockets.close_now(self._accepting)
        self._acceptor.join(CLOSE_S)
        with self._guard:
            connections = [*self._strangers, *self._known]
            threads = set(self._threads)
        for connection in connections:
            sockets.close_now(connection)
        for thread in threads:
            thread.join(CLOSE_S)

    def _accept(self) -> None:
        with suppress(OSError):  # how a closed listener tells us
            while True:
                connection, (host, *_) = self._accepting.accept()
                if self._settings.tls is not None:
                    try:
                        connection = self._settings.tls.accepted(connection)
                    except OSError:  # it is over already
                        connection.close()
                        continue
                with self._guard:
                    if len(self._strangers) >= MAX_STRANGERS:
                        self._make_room()
                    self._strangers[connection] = host
                self._start(connection)

    def _make_room(self) -> None:
        ((crowd, _),) = Counter(self._strangers.values()).most_common(1)
        oldest = next(connection for connection, host in self._strangers.items() if host == crowd)
        del self._strangers[oldest]
        sockets.hang_up(oldest)  # its own thread closes it

    def _start(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._run, args=(connection,), name="from", daemon=True)
        with self._guard:
            self._threads.add(thread)
        try:
            start(thread)
        except SyncError as error:  # whoever connects is turned away, and those who are here stay
            with self._guard:
                self._threads.discard(thread)
            self._refuse(connection, str(error))

    def _run(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        finally:
            with self._guard:
                self._threads.discard(threading.current_thread())

    def _serve(self, connection: socket.socket) -> None:
        try:
            hello = handshake.answer(connection, self._settings, time.monotonic() + GREETING_S)
            self._know(hello, connection)
        except (OSError, SyncError) as error:
            self._refuse(connection, str(error) if isinstance(error, ImpostorError) else "")
            return
        threading.current_thread().name = f"from {hello.member}, {hello.channel}.{hello.stream}"
        try:
            self._attend(hello, connection)
        except (OSError, SyncError) as error:
            self._refuse(connection, f"{hello.member}: {error}")
        finally:
            self._forget(connection)

    def _attend(self, hello: Greeting, connection: socket.socket) -> None:
        """Do what a member has connected for, until it is over. FrameError when it is nothing there is."""
        if hello.channel == FETCH:
            self._endpoint.serve(connection)
            return
        receiver = self._endpoint.receiver(hello)
        if not receiver.opened(hello.member, hello.channel):
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
        self._forget(connection)  # before it is told, for then the peer may connect again
        receiver.closed(hello.member, hello.channel, reason)

    def _forget(self, connection: socket.socket) -> None:
        with self._guard:
            self._known.pop(connection, None)
        sockets.close_now(connection)

    def _refuse(self, connection: socket.socket, complaint: str) -> None:
        """End a connection. A complaint that names a member is logged, once, and not without end."""
        with self._guard:
            self.refused += 1
            self._strangers.pop(connection, None)
            news = complaint and complaint not in self._complaints and len(self._complaints) < MOST_COMPLAINTS
            if news:
                self._complaints.add(complaint)
        if news:
            log.warning("%s: refused a connection: %s", self._settings.member, complaint)
        sockets.close_now(connection)

    def _know(self, hello: Greeting, connection: socket.socket) -> None:
        """FrameError when such a connection is here already, or too many of the member's; OSError when it had to make
        room."""
        with self._guard:
            if self._strangers.pop(connection, None) is None:
                raise ConnectionError("it made room for another")
            if hello.channel != FETCH and hello in self._known.values():
                raise FrameError(f"{hello.member} is connected already")
            most = MOST_OF_A_STREAM * self._settings.streams
            if sum(known.member == hello.member for known in self._known.values()) >= most:
                raise FrameError(f"{hello.member} has {most} connections already")
            self._known[connection] = hello

    def _read(self, receiver: Receiver, hello: Greeting, connection: socket.socket) -> None:
        """Hand on frames until the peer closes between two of them."""
        wire = FrameFormat(receiver.header_bytes)
        raw = memoryview(bytearray(wire.size))
        scratch = Scratch()
        sockets.stamp(connection)
        sockets.acknowledge_at_once(connection)

        def packets() -> Packets:
            return Packets(time.time(), *tcpinfo.packets_in(connection))

        with self._arrivals.timing(hello.member, packets) as timing:
            while sockets.receive_or_end(connection, raw):
                head = wire.unpack(raw)
                if head.length > receiver.most_bytes:
                    raise FrameError(f"a frame of {head.length} bytes; those here have {receiver.most_bytes} at most")
                began = time.monotonic()
                payload = scratch.room(head.length)
                timing.begin(head, wire.size)
                sockets.receive_timed(connection, payload, timing.note)
                head.verify(payload)
                seconds = time.monotonic() - began
                hand_on(receiver, hello, Received(hello.member, head, payload, wire.size + head.length, seconds))
                if hello.channel != DIRECT:
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
