"""Where peers connect: one thread accepts, one per connection reads frames and hands them on."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Protocol

from testbed.sync import frame, sockets
from testbed.sync.buffers import Scratch
from testbed.sync.errors import FrameError, SyncError

#: Connections at once that have not said yet who they are. Each costs a thread; garbage must not cost more.
MAX_STRANGERS = 128

#: Threads end at once when their connection does; this is for a machine that has no time for them.
CLOSE_S = 5.0

#: A path may be away just while a greeting is on its way.
GREETING_S = 60.0


class Receiver(Protocol):
    """What frames are handed to. The first two may raise FrameError, which ends the connection."""

    def admit(self, peer: str, head: frame.Frame) -> int:
        """The number of the chunk that a frame is for, once it may be received."""

    def take(self, peer: str, head: frame.Frame, raw: bytes, number: int, payload: memoryview) -> None:
        """A frame whose checksum held. `payload` is only lent."""

    def gone(self, peer: str, reason: str) -> None:
        """No more frames will come from the peer."""


class Listener:
    """Reads frames from whoever greets with the run's secret and a member's name.

    What comes from elsewhere, or is no frame, ends its own connection and nothing else; `refused` counts those.
    """

    def __init__(
        self,
        accepting: socket.socket,
        members: tuple[str, ...],
        secret: str,
        receiver: Receiver,
    ) -> None:
        self.refused = 0
        self._accepting = accepting
        self._members = members
        self._format = frame.FrameFormat(len(members))
        self._secret = secret
        self._receiver = receiver
        self._guard = threading.Lock()
        self._strangers: set[socket.socket] = set()
        self._known: dict[str, socket.socket] = {}
        self._threads: set[threading.Thread] = set()
        self._acceptor = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._acceptor.start()

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
            peer = self._greeted(connection)
        except (OSError, SyncError):
            self._refuse(connection)
            return
        threading.current_thread().name = f"from {peer}"
        try:
            reason = self._read(peer, connection)
        except (OSError, SyncError) as error:
            reason = str(error) or repr(error)
        with self._guard:
            del self._known[peer]
        sockets.close_now(connection)
        self._receiver.gone(peer, reason)

    def _refuse(self, connection: socket.socket) -> None:
        with self._guard:
            self.refused += 1
            self._strangers.discard(connection)
        sockets.close_now(connection)

    def _greeted(self, connection: socket.socket) -> str:
        """Who it is that connected; FrameError when it is nobody we know or somebody who is here already."""
        connection.settimeout(GREETING_S)
        head = memoryview(bytearray(frame.GREETING.size))
        sockets.receive(connection, head)
        name = memoryview(bytearray(frame.name_length(head, self._secret)))
        sockets.receive(connection, name)
        connection.settimeout(None)
        peer = bytes(name).decode(errors="replace")
        with self._guard:
            if peer not in self._members:
                raise FrameError(f"{peer!r} is not a member")
            if peer in self._known:
                raise FrameError(f"{peer} is connected already")
            self._strangers.discard(connection)
            self._known[peer] = connection
        return peer

    def _read(self, peer: str, connection: socket.socket) -> str:
        """Hand on frames until the peer closes between two of them; why it ended."""
        raw = memoryview(bytearray(self._format.size))
        scratch = Scratch()
        while sockets.receive_or_end(connection, raw):
            head = self._format.unpack(raw)
            number = self._receiver.admit(peer, head)
            payload = scratch.room(head.length)
            sockets.receive(connection, payload)
            self._format.verify(raw, payload)
            self._receiver.take(peer, head, bytes(raw), number, payload)
        return "closed its connection"
