"""The way to one next hop: a connection, a thread that writes to it, and a queue that puts the front first."""

from __future__ import annotations

import heapq
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from testbed.protocol import PeerSample
from testbed.sync import sockets, tcpinfo

#: (round, index of the chunk in its slice, 0 for a mean and 1 for a partial sum, tree): least goes first. Older
#: rounds, then the front of the tensor; a mean before a partial sum, since it is further on its way.
Priority = tuple[int, int, int, int]


#: Threads end at once when their connection does; this is for a machine that has no time for them.
CLOSE_S = 5.0


class _Item(NamedTuple):
    priority: Priority
    order: int
    head: bytes
    payload: memoryview


class Sender:
    """Sends frames to `peer` in order of priority. Connects by itself, as soon as it is made.

    `put` never blocks: payloads are views into the rounds' own buffers, so what waits here takes no room of its
    own and is bounded by the chunks of two rounds. A receiver that forwards can therefore never block on a full
    queue, and no cycle of peers can deadlock. `on_failure(peer, reason)` is called when frames can't be delivered.
    """

    def __init__(
        self,
        peer: str,
        address: tuple[str, int],
        greeting: bytes,
        patience_s: float,
        on_failure: Callable[[str, str], None],
    ) -> None:
        self.peer = peer
        self.failure = ""
        self._address = address
        self._greeting = greeting
        self._patience_s = patience_s
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._queue: list[_Item] = []
        self._order = count()
        self._closing = False
        self._aborted = threading.Event()
        self._connection: socket.socket | None = None
        self._last = tcpinfo.TcpInfo(0, 0.0, 0.0, 0, 0)
        self._thread = threading.Thread(target=self._run, name=f"to {peer}", daemon=True)
        self._thread.start()

    def put(self, priority: Priority, head: bytes, payload: memoryview) -> None:
        """Have a frame sent. `payload` must stay as it is until the peer has it."""
        with self._changed:
            heapq.heappush(self._queue, _Item(priority, next(self._order), head, payload))
            self._changed.notify_all()
            failure = self.failure
        if failure:
            self._on_failure(self.peer, failure)

    def sample(self) -> PeerSample | None:
        """What the path did since the last sample; None when nothing was acknowledged."""
        connection = self._connection
        if connection is None:
            return None
        try:
            now = tcpinfo.read(connection)
        except OSError:
            return None
        last, self._last = self._last, now
        if now.bytes_acked == last.bytes_acked:
            return None
        return PeerSample(
            peer=self.peer,
            bytes=now.bytes_acked - last.bytes_acked,
            busy_s=now.busy_s - last.busy_s,
            rtt_s=now.min_rtt_s,
            retransmits=now.retransmits - last.retransmits,
            delivery_bytes_s=now.delivery_bytes_s,
        )

    @property
    def connected(self) -> bool:
        """Whether there ever was a connection."""
        return self._connection is not None

    def await_connection(self, timeout_s: float) -> bool:
        """Wait until there is a connection; False when there can be none, or `timeout_s` have passed."""
        with self._changed:
            self._changed.wait_for(lambda: self.connected or self.failure or self._closing, max(timeout_s, 0))
            return self.connected

    def finish(self) -> None:
        """Begin to end: what is queued is still sent. `join` waits for it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait until the peer has read everything and closed, or `timeout_s` have passed; then end."""
        self._thread.join(max(timeout_s, 0))
        self.abort()
        self._thread.join(CLOSE_S)

    def abort(self) -> None:
        """End at once; what is queued is not sent."""
        with self._changed:
            self._closing = True
            self._aborted.set()
            self._queue.clear()
            self._changed.notify_all()
            connection = self._connection
        if connection is not None:
            sockets.close_now(connection)

    def _run(self) -> None:
        try:
            self._open()
            while (item := self._next()) is not None:
                assert self._connection is not None
                sockets.send_all(self._connection, item.head, item.payload)
        except OSError as error:
            self._fail(error)
            return
        self._hand_over()

    def _open(self) -> None:
        connection = sockets.connect(self._address, self._patience_s, self._aborted)
        connection.sendall(self._greeting)
        with self._changed:
            self._connection = connection
            self._changed.notify_all()

    def _next(self) -> _Item | None:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return heapq.heappop(self._queue) if self._queue else None

    def _fail(self, error: OSError) -> None:
        with self._changed:
            if self._aborted.is_set():
                return
            self.failure = str(error) or repr(error)
            wanted = self.connected or bool(self._queue)
            self._changed.notify_all()
        if wanted:
            self._on_failure(self.peer, self.failure)

    def _hand_over(self) -> None:
        """Wait for the peer to read all and close.

        A container's interface goes with its last process, and unacknowledged bytes with the interface.
        """
        connection = self._connection
        assert connection is not None
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            if not self._aborted.is_set():
                connection.recv(1)
        sockets.close_now(connection)
