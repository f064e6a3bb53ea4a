"""Proxies before members that delay the bytes to them, each connection independently; and a host that never answers."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from testbed.sync.transport.sender import CLOSE_S
from testbed.sync.transport.sockets import close_now

#: Bytes are read in pieces. One piece in SLOW_ONE_OF takes up to SLOW_S seconds; the others are forwarded at once.
PIECE_BYTES = 4096
SLOW_ONE_OF, SLOW_S = 40, 0.003


class Proxy:
    """Listens at `address` and forwards all bytes to `target()`. `passed` holds the forwarded bytes in order."""

    def __init__(self, target: Callable[[], tuple[str, int]], seed: int) -> None:
        self._target = target
        self._draw = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.passed = bytearray()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._listener, *self._sockets):
            close_now(connection)
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                onward = socket.create_connection(self._target())
                onward.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [connection, onward]
                draw = random.Random(self._draw.random())
                for way, words in (
                    (_pass_on, (connection, onward, draw, self.passed)),
                    (_answer, (connection, onward)),
                ):
                    thread = threading.Thread(target=way, args=words, daemon=True)
                    self._threads.append(thread)
                    thread.start()


def _pass_on(source: socket.socket, target: socket.socket, draw: random.Random, passed: bytearray) -> None:
    """Forward the source's bytes until it closes."""
    with suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            if not draw.randrange(SLOW_ONE_OF):
                time.sleep(draw.uniform(0, SLOW_S))
            passed += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
        return
    close_now(target)


def _answer(source: socket.socket, target: socket.socket) -> None:
    """Forward the target's answers until it closes."""
    with suppress(OSError):
        while data := target.recv(PIECE_BYTES):
            source.sendall(data)
    close_now(source)
    close_now(target)


@contextmanager
def unanswered() -> Iterator[tuple[str, int]]:
    """Yield an address whose host answers no attempt to connect: its queue of accepted connections is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()
