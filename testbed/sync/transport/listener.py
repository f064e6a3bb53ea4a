"""The receiving end of connections: one thread accepts, and one per connection reads frames and passes them on."""

from __future__ import annotations

import errno
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
from testbed.sync.transport.arrivals import Arrivals, PacketCount
from testbed.sync.transport.frame import DIRECT, FETCH, Frame, FrameFormat, Greeting
from testbed.sync.transport.handshake import CLOSE_S, TransportSettings
from testbed.sync.transport.outbox import Outbox
from testbed.sync.transport.probe import ProbeListener

#: The most connections at once that are not authenticated yet. Each costs a thread.
MAX_STRANGERS = 128

#: The most connections of a member at once, for each of its streams: a few channels in each generation that is open.
MOST_OF_A_STREAM = 64

#: The longest duration of a greeting in seconds. The path may be down for a while during it.
GREETING_S = 60.0

#: The most reasons of refused connections in the log. Without a limit, one peer could fill the disk.
MOST_COMPLAINTS = 100

#: The reasons for which a connection can't be accepted now, but may be later: files or memory have run out, or the peer
#: has gone again.
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED})
#: Seconds from such a failure to the next attempt. Connections wait in the kernel meanwhile.
_ACCEPT_AGAIN_S = 0.1

log = logging.getLogger(__name__)


class Received(NamedTuple):
    """A frame as it arrived: its head and payload, the member that made it, and its time on the wire."""

    #: The member that made the frame.
    source: str
    frame: Frame
    #: A view into a buffer that the next frame overwrites.
    payload: memoryview
    #: The frame's bytes on the wire: head and payload.
    bytes: int
    #: Seconds from the end of the head to the end of the payload.
    seconds: float


class Receiver(Protocol):
    """Takes the frames of one generation of members."""

    #: The length of the frames' own headers.
    header_bytes: int
    #: Forwards frames on auxiliary routes; None if there are no such routes.
    outbox: Outbox | None

    @property
    def most_bytes(self) -> int:
        """The most bytes of a payload."""

    def opened(self, peer: str, channel: int) -> bool:
        """Record that a peer connected on a channel. Returns whether it may send frames there."""

    def take(self, received: Received) -> None:
        """Take a frame. May block until there is room for it.

        Raises:
            FrameError: The frame is not allowed. The connection ends.
        """

    def closed(self, peer: str, channel: int, error: str) -> None:
        """Record that a connection of the peer ended: between two frames if `error` is empty, otherwise for `error`."""


class Endpoint(Protocol):
    """Chooses the receiver of each connection."""

    def receiver(self, hello: Greeting) -> Receiver:
        """Return the receiver of a peer's frames. Waits while the peer's generation is not known yet.

        Raises:
            SyncError: No receiver takes the frames.
        """

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of a peer on a FETCH connection."""


class Listener:
    """Reads frames from other members, which authenticate by name and key (see handshake.py).

    A connection of anybody else, or with bytes that are not a frame, is closed; other connections go on. At most
    MAX_STRANGERS connections are not authenticated yet. A further one closes the oldest connection from the address
    that most of them come from, so an attacker at one address can't keep members out.

    Raises:
        SyncError: No other thread can be started.

    Attributes:
        refused: The number of connections that were closed because of an error of the other end.
    """

    def __init__(self, accepting: socket.socket, settings: TransportSettings, endpoint: Endpoint) -> None:
        self.refused = 0
        self._accepting = accepting
        self._settings = settings
        self._endpoint = endpoint
        self._arrivals = Arrivals()
        self._probes = ProbeListener(accepting, settings, self._arrivals)
        self._guard = threading.Lock()
        #: The connections that are not authenticated yet, oldest first, with the host that each comes from.
        self._strangers: dict[socket.socket, str] = {}
        self._known: dict[socket.socket, Greeting] = {}
        self._complaints: set[str] = set()
        self._threads: set[threading.Thread] = set()
        self._acceptor = threading.Thread(target=self._accept, name="accept", daemon=True)
        try:
            start(self._acceptor)
        except SyncError:
            self._probes.close()
            raise

    def arrivals(self) -> dict[str, tuple[Train, ...]]:
        """Return the packet trains that came from each peer since the last call; see arrivals.py."""
        return self._arrivals.take()

    def close(self) -> None:
        """Stop listening, end every connection, and wait for their threads.

        An interpreter with PyTorch aborts if a thread wakes up while it ends, so no thread may be left.
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
        with suppress(OSError):  # the listener was closed
            while True:
                try:
                    connection, (host, *_) = self._accepting.accept()
                except OSError as error:
                    if error.errno not in _PASSING:
                        raise
                    remedy = "; raise the limit (ulimit -n)" if error.errno == errno.EMFILE else ""
                    self._complain(f"can't accept connections now: {error}{remedy}")
                    time.sleep(_ACCEPT_AGAIN_S)
                    continue
                if self._settings.tls is not None:
                    try:
                        connection = self._settings.tls.accepted(connection)
                    except OSError:  # the peer has closed it
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
        sockets.shut_down(oldest)  # its own thread closes it

    def _start(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._run, args=(connection,), name="from", daemon=True)
        with self._guard:
            self._threads.add(thread)
        try:
            start(thread)
        except SyncError as error:  # other connections stay
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
            sockets.tune(connection, self._settings.timeout_s, self._settings.congestion)  # answers travel as far
            hello = handshake.answer(connection, self._settings, time.monotonic() + GREETING_S)
            self._admit(hello, connection)
        except (OSError, SyncError) as error:
            self._refuse(connection, str(error) if isinstance(error, ImpostorError) else "")
            return
        threading.current_thread().name = f"from {hello.member}, {hello.channel}.{hello.stream}"
        try:
            self._handle(hello, connection)
        except (OSError, SyncError) as error:
            self._refuse(connection, f"{hello.member}: {error}")
        finally:
            self._forget(connection)

    def _handle(self, hello: Greeting, connection: socket.socket) -> None:
        """Serve a member's connection until it ends. Raises FrameError for a channel that does not exist."""
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
        except Exception as error:  # a defect here: name the peer whose frame shows it
            log.exception("%s: a frame from %s could not be handled", self._settings.member, hello.member)
            reason = f"one of its frames could not be handled: {error!r}"
        self._forget(connection)  # before `closed`, because the peer may connect again after it
        receiver.closed(hello.member, hello.channel, reason)

    def _forget(self, connection: socket.socket) -> None:
        with self._guard:
            self._known.pop(connection, None)
        sockets.close_now(connection)

    def _refuse(self, connection: socket.socket, complaint: str) -> None:
        """End a connection. Logs the complaint, unless it is empty."""
        with self._guard:
            self.refused += 1
            self._strangers.pop(connection, None)
        if complaint:
            self._complain(f"refused a connection: {complaint}")
        sockets.close_now(connection)

    def _complain(self, text: str) -> None:
        """Log each different complaint once, up to MOST_COMPLAINTS."""
        with self._guard:
            new = text not in self._complaints and len(self._complaints) < MOST_COMPLAINTS
            if new:
                self._complaints.add(text)
        if new:
            log.warning("%s: %s", self._settings.member, text)

    def _admit(self, hello: Greeting, connection: socket.socket) -> None:
        """Record that a connection is authenticated.

        Raises:
            FrameError: The member has the same connection already, or too many.
            ConnectionError: The connection was closed to make room.
        """
        with self._guard:
            if self._strangers.pop(connection, None) is None:
                raise ConnectionError("closed to make room for another connection")
            if hello.channel != FETCH and hello in self._known.values():
                raise FrameError(f"{hello.member} is connected already")
            most = MOST_OF_A_STREAM * self._settings.streams
            count = sum(known.member == hello.member for known in self._known.values())
            if count >= most and not self._end_oldest_generation(hello):
                raise FrameError(f"{hello.member} has {most} connections already")
            self._known[connection] = hello

    def _end_oldest_generation(self, hello: Greeting) -> bool:
        """End the connections of a member's oldest generation, if the member is in a newer one. Returns whether it is.

        A member whose host vanished did not close its connections. They stay open at this end, and nothing comes from
        them any more. The caller holds the guard.
        """
        theirs = {known: its for known, its in self._known.items() if its.member == hello.member}
        generations = {its.generation for its in (*theirs.values(), hello) if its.channel != FETCH}
        if len(generations) < 2:
            return False
        ended = [known for known, its in theirs.items() if its.channel != FETCH and its.generation == min(generations)]
        for known in ended:
            del self._known[known]
            sockets.shut_down(known)  # its own thread closes it
        return bool(ended)

    def _read(self, receiver: Receiver, hello: Greeting, connection: socket.socket) -> None:
        """Read frames and pass them on until the peer closes the connection between two of them."""
        wire = FrameFormat(receiver.header_bytes)
        raw = memoryview(bytearray(wire.size))
        scratch = Scratch()
        sockets.stamp(connection)
        sockets.acknowledge_at_once(connection)

        def packets() -> PacketCount:
            return PacketCount(time.time(), *tcpinfo.packets_in(connection))

        with self._arrivals.timing(hello.member, packets) as timing:
            while sockets.receive_or_end(connection, raw):
                head = wire.unpack(raw)
                if head.length > receiver.most_bytes:
                    raise FrameError(f"a frame of {head.length} bytes, over the limit of {receiver.most_bytes}")
                began = time.monotonic()
                payload = scratch.room(head.length)
                timing.begin(head, wire.size)
                sockets.receive_timed(connection, payload, timing.note)
                head.verify(payload)
                seconds = time.monotonic() - began
                dispatch(receiver, hello, Received(hello.member, head, payload, wire.size + head.length, seconds))
                if hello.channel != DIRECT:
                    connection.sendall(frame.TAKEN)


def dispatch(receiver: Receiver, hello: Greeting, received: Received) -> None:
    """Pass a frame, whose source is the connected peer, to its receiver, or forward it to the next member on its route.

    Raises:
        FrameError: The frame does not belong on the connection, or its route does not exist.
    """
    peer, head = received.source, received.frame
    if head.channel != hello.channel:
        raise FrameError(f"a frame that {head.left} members have to forward came on channel {hello.channel}")
    if not head.route:
        receiver.take(received)
        return
    if receiver.outbox is None:
        raise FrameError("a frame on an auxiliary route, but there are no auxiliary routes here")
    source = receiver.outbox.origin(peer, head)
    if head.left:
        receiver.outbox.forward(peer, head, received.payload)
    else:
        receiver.take(received._replace(source=source))
