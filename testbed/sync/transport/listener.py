"""Where peers connect: one thread accepts, one per connection reads frames and hands them on."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Protocol

from testbed.protocol import Train
from testbed.sync.allreduce.round import Delivery
from testbed.sync.buffers import Scratch
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import frame, sockets, tcpinfo
from testbed.sync.transport.arrivals import Arrivals

#: Connections at once that have not said yet who they are. Each costs a thread; garbage must not cost more.
MAX_STRANGERS = 128

#: Threads end at once when their connection does; this is for a machine that has no time for them.
CLOSE_S = 5.0

#: A path may be away just while a greeting is on its way.
GREETING_S = 60.0


class Receiver(Protocol):
    """What frames are handed to. `admit` and what it returns may raise FrameError, which ends the connection."""

    wire: frame.FrameFormat

    def come(self, lane: int) -> bool:
        """Whether a peer may send frames in a lane from now on."""

    def admit(self, peer: str, lane: int, head: frame.Frame) -> Delivery:
        """What to do with a frame's elements, once it may be received."""

    def gone(self, peer: str, lane: int, error: str) -> None:
        """A connection of the peer ended: between two frames as it should (no `error`), or else."""


class Door(Protocol):
    """Who knows whom connections are for."""

    def receiver(self, hello: frame.Greeting) -> Receiver:
        """Who takes the frames of a peer; waits where that is not known yet. SyncError when nobody does."""

    def serve(self, connection: socket.socket) -> None:
        """Answer a peer that asks for something."""


class Listener:
    """Reads frames from whoever greets with the run's secret and a member's name.

    What comes from elsewhere, or is no frame, ends its own connection and nothing else; `refused` counts those.
    """

    def __init__(self, accepting: socket.socket, secret: str, door: Door) -> None:
        self.refused = 0
        self._accepting = accepting
        self._secret = secret
        self._door = door
        self._arrivals = Arrivals()
        self._guard = threading.Lock()
        self._strangers: set[socket.socket] = set()
        self._known: dict[frame.Greeting, socket.socket] = {}
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
            threading.current_thread().name = f"from {hello.member}, {hello.lane}.{hello.stream}"
            if hello.lane == frame.FETCH_LANE:
                with connection:
                    self._door.serve(connection)
                return
            receiver = self._door.receiver(hello)
            self._know(hello, connection)
        except (OSError, SyncError):
            self._refuse(connection)
            return
        finally:
            with self._guard:
                self._strangers.discard(connection)
        if not receiver.come(hello.lane):
            self._forget(hello, connection)
            return
        reason = ""
        try:
            if hello.lane:
                connection.sendall(frame.WELCOME)
            self._read(receiver, hello, connection)
        except (OSError, SyncError) as error:
            reason = str(error) or repr(error)
        self._forget(hello, connection)
        receiver.gone(hello.member, hello.lane, reason)

    def _forget(self, hello: frame.Greeting, connection: socket.socket) -> None:
        with self._guard:
            del self._known[hello]
        sockets.close_now(connection)

    def _refuse(self, connection: socket.socket) -> None:
        with self._guard:
            self.refused += 1
        sockets.close_now(connection)

    def _greeted(self, connection: socket.socket) -> frame.Greeting:
        """Who it is that connected; FrameError when it does not greet as one of us."""
        connection.settimeout(GREETING_S)
        head = memoryview(bytearray(frame.GREETING.size))
        sockets.receive(connection, head)
        name = memoryview(bytearray(frame.name_length(head, self._secret)))
        sockets.receive(connection, name)
        connection.settimeout(None)
        return frame.greeted(head, name)

    def _know(self, hello: frame.Greeting, connection: socket.socket) -> None:
        """FrameError when such a connection is here already."""
        with self._guard:
            if hello in self._known:
                raise FrameError(f"{hello.member} is connected already")
            self._known[hello] = connection

    def _read(self, receiver: Receiver, hello: frame.Greeting, connection: socket.socket) -> None:
        """Hand on frames until the peer closes between two of them."""
        raw = memoryview(bytearray(receiver.wire.size))
        scratch = Scratch()
        sockets.stamp(connection)
        with self._arrivals.timing(hello.member, lambda: tcpinfo.out_of_order(connection)) as timing:
            while sockets.receive_or_end(connection, raw):
                head = receiver.wire.unpack(raw)
                delivery = receiver.admit(hello.member, hello.lane, head)
                payload = scratch.room(head.length) if delivery.into is None else delivery.into
                timing.begin(head, receiver.wire.size)
                sockets.receive_timed(connection, payload, timing.note)
                frame.verify(head, payload)
                delivery.take(payload)
                if 0 < hello.lane < frame.PROBE_LANE:
                    connection.sendall(frame.TAKEN)
