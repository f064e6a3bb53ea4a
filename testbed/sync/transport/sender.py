"""The connections to one next hop, each with a thread that sends the most urgent frame."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from testbed.sync.errors import SyncError
from testbed.sync.executor import start
from testbed.sync.transport import handshake, sockets, tcpinfo
from testbed.sync.transport.frame import DIRECT, FETCH, TAKEN, FrameFormat, Greeting
from testbed.sync.transport.handshake import CLOSE_S, TransportSettings
from testbed.sync.transport.send_queue import SendQueue
from testbed.sync.transport.startup import StartUp
from testbed.sync.transport.tcpinfo import TcpInfo

#: Seconds between two readings of TCP's limits. They at most double in a round trip; a reading costs 10 µs.
LOOK_S = 0.01

log = logging.getLogger(__name__)


class _Pace:
    """The rate that a connection's TCP allows, read each LOOK_S."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._paced = tcpinfo.paces(connection)
        self._looked = -LOOK_S
        self._allowed = (0, 0)

    def allowed(self, now: float, rested: bool) -> tuple[int, int]:
        """Return the rate that TCP allows, and the rate of its bursts, both in bytes/s; see TcpInfo.

        BBR begins at its estimate after a rest, whatever its gain was before. When the gain of 1.25 was counted, trains
        at the estimate were taken for a full link.

        Args:
            now: The time (monotonic).
            rested: True if the connection was idle before this frame.

        Raises:
            OSError: The connection is closed.
        """
        if now - self._looked >= LOOK_S:
            self._looked = now
            info = tcpinfo.read(self._connection)
            self._allowed = info.allowed_bytes_s(self._paced), info.burst_bytes_s(self._paced)
        if rested and self._paced:
            view = tcpinfo.bbr(self._connection)
            gain = view.probing_gain if view else 1.0
            return int(self._allowed[0] / gain), int(self._allowed[1] / gain)
        return self._allowed


class Sender:
    """Sends the frames of a queue to a peer. The constructor begins to connect.

    Args:
        on_failure: Called with the peer and the reason when frames can't be delivered.
        queue: The queue of frames; None makes one.

    Raises:
        SyncError: No other thread can be started.

    Attributes:
        failure: Why the connections failed; empty while they work.
        sending_s: Seconds spent in sending, over all connections.
    """

    def __init__(
        self,
        peer: str,
        address: tuple[str, int],
        settings: TransportSettings,
        wire: FrameFormat,
        on_failure: Callable[[str, str], None],
        channel: int = DIRECT,
        queue: SendQueue | None = None,
    ) -> None:
        self.peer = peer
        self.queue = SendQueue() if queue is None else queue  # an empty queue is false
        self.failure = ""
        self.sending_s = 0.0
        self._settings = settings
        self._wire = wire
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._aborted = threading.Event()
        self._connections: list[socket.socket] = []
        self._start_ups = [StartUp() for _ in range(settings.streams)]
        self._last: list[TcpInfo] = [tcpinfo.NOTHING] * settings.streams
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(address, Greeting(settings.member, channel, i, settings.generation)),
                name=f"to {peer}, {channel}.{i}",
                daemon=True,
            )
            for i in range(settings.streams)
        ]
        try:
            for thread in self._threads:
                start(thread)
        except SyncError:
            self.abort()
            raise

    def sample(self) -> TcpInfo | None:
        """Return the path's figures since the last call, over all connections; None if no byte was acknowledged."""
        grown = []
        for i, now in self.look().items():
            grown.append(now.since(self._last[i]))
            self._last[i] = now
        whole = tcpinfo.together(grown)
        return whole if whole.bytes_acked else None

    def look(self) -> dict[int, TcpInfo]:
        """Return the counters of each open connection since it began, by the connection's number."""
        found = {}
        for i, connection in enumerate(tuple(self._connections)):
            with suppress(OSError):
                found[i] = tcpinfo.read(connection)
        return found

    def start_ups(self) -> list[tuple[socket.socket, StartUp]]:
        """Return each connection, with the object that decides when BBR's start-up begins again on it."""
        return list(zip(self._connections, self._start_ups, strict=False))

    def queueing(self) -> bool:
        """Return whether packets wait on the path of any connection."""
        return any(info.queues for info in self.look().values())

    def idle(self) -> bool:
        """Return whether no frame waits, and the peer has acknowledged all bytes of all connections."""
        return not len(self.queue) and all(info.idle for info in self.look().values())

    @property
    def connected(self) -> bool:
        """True if all connections were made, even if they have ended since."""
        return len(self._connections) == self._settings.streams

    def await_connection(self, timeout_s: float) -> bool:
        """Wait for all connections. Returns False if they failed, or `timeout_s` has passed."""
        with self._changed:
            self._changed.wait_for(lambda: self.connected or self.failure or self._aborted.is_set(), max(timeout_s, 0))
            return self.connected

    def finish(self) -> None:
        """Accept no more frames, and end after the queued ones. Returns at once; `join` waits for the end.

        If there is no connection yet and no frame, none is made: the peer may have left already, and connecting would
        be tried until the timeout.
        """
        self.queue.close()
        if not self._connections and not len(self.queue):
            self.abort()

    def join(self, timeout_s: float) -> bool:
        """Wait until the peer has read every frame and closed its end, at most `timeout_s`, and close the connections.

        Returns:
            False if the peer had not done so within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        ended = not any(thread.is_alive() for thread in self._threads)
        self.abort()
        for thread in self._threads:
            thread.join(CLOSE_S)
        return ended

    def abort(self) -> None:
        """End at once, without sending the queued frames."""
        with self._changed:
            self._aborted.set()
            self._changed.notify_all()
            connections = tuple(self._connections)
        self.queue.close(drop=True)
        for connection in connections:
            sockets.close_now(connection)

    def _run(self, address: tuple[str, int], hello: Greeting) -> None:
        try:
            connection = self._open(address, hello)
        except (OSError, SyncError) as error:
            self._fail(error, lost=False)
            return
        try:
            self._send_all(connection, answered=DIRECT < hello.channel < FETCH)
        except (OSError, SyncError) as error:
            self._fail(error, lost=True)
            return
        except Exception as error:  # a defect here, which would leave the round to its timeout
            log.exception("%s: a frame for %s could not be sent", self._settings.member, self.peer)
            self._fail(error, lost=True)
            return
        self._await_peer_close(connection)

    def _open(self, address: tuple[str, int], hello: Greeting) -> socket.socket:
        settings = self._settings

        def greet(connection: socket.socket, deadline: float) -> socket.socket:
            return handshake.greet(connection, hello, self.peer, settings, deadline, self._aborted.is_set)

        connection = sockets.connect(address, settings.timeout_s, self._aborted, settings.congestion, greet)
        if hello.channel:
            try:
                handshake.await_welcome(connection, time.monotonic() + settings.timeout_s, self._aborted.is_set)
            except OSError:
                connection.close()
                raise
        with self._changed:
            self._connections.append(connection)
            self._changed.notify_all()
        return connection

    def _send_all(self, connection: socket.socket, answered: bool) -> None:
        longest = 0
        pace, ended = _Pace(connection), 0.0
        while (item := self.queue.take()) is not None:
            if item.frame.length > longest:
                longest = item.frame.length
                sockets.limit_unsent(connection, longest)
            began = time.monotonic()
            frame = item.frame.sealed(item.payload)  # here, because the bytes that it reads are sent next
            follows = not answered and item.queued_s <= ended  # while the sender awaits an answer, the path is idle
            allowed, burst = pace.allowed(began, rested=not follows)
            head = self._wire.pack(frame._replace(follows=follows, allowed_bytes_s=allowed, burst_bytes_s=burst))
            sockets.send_all(connection, head, item.payload)
            ended = time.monotonic()
            self.sending_s += ended - began
            if answered:
                sockets.receive(connection, memoryview(bytearray(len(TAKEN))))
            item.sent()

    def _fail(self, error: Exception, lost: bool) -> None:
        """Record a failure, and report it if a frame is affected: one that is `lost` with it, or one in the queue."""
        with self._changed:
            if self._aborted.is_set():
                return
            self.failure = self.failure or str(error) or repr(error)
            wanted = lost or len(self.queue)
            self._changed.notify_all()
        if wanted:
            self._on_failure(self.peer, self.failure)

    def _await_peer_close(self, connection: socket.socket) -> None:
        """Wait for the peer to read everything and close.

        A container's interface is removed with its last process, and unacknowledged bytes are lost with it.
        """
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_WR)
            if not self._aborted.is_set():
                sockets.keep_alive(connection)
                connection.recv(1)
        sockets.close_now(connection)
