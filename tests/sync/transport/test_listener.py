"""The listener: strangers can't keep members out, and nobody can connect under another member's name."""

from __future__ import annotations

import errno
import logging
import os
import queue
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from testbed.sync.errors import FrameError, ImpostorError
from testbed.sync.transport import handshake, sockets
from testbed.sync.transport.frame import FETCH, Frame, FrameFormat, Greeting
from testbed.sync.transport.listener import MAX_STRANGERS, MOST_OF_A_STREAM, Listener, Received, Receiver
from testbed.sync.transport.outbox import Outbox
from tests.sync.keys import settings_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

WIRE = FrameFormat(1)
#: Connections of strangers, more than the listener allows at once.
CROWD = 2 * MAX_STRANGERS


class Inward:
    """The endpoint of b, which queues payloads and ends of connections for the test. Only generation 0 exists."""

    header_bytes = 1
    most_bytes = 1024
    outbox: Outbox | None = None

    def __init__(self) -> None:
        self.payloads: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.ended: queue.Queue[tuple[str, str]] = queue.Queue()

    def receiver(self, hello: Greeting) -> Receiver:
        if hello.generation:
            raise FrameError(f"claims generation {hello.generation}")
        return self

    def serve(self, connection: socket.socket) -> None:
        sockets.receive_or_end(connection, memoryview(bytearray(1)))

    def opened(self, peer: str, channel: int) -> bool:
        return True

    def take(self, received: Received) -> None:
        self.payloads.put((received.source, bytes(received.payload)))

    def closed(self, peer: str, channel: int, error: str) -> None:
        self.ended.put((peer, error))


@pytest.fixture
def inward() -> Inward:
    return Inward()


@pytest.fixture
def address(inward: Inward) -> Iterator[tuple[str, int]]:
    """Let b listen. Yields its address."""
    accepting = sockets.listen("127.0.0.1", PATIENCE_S)
    where = accepting.getsockname()
    listener = Listener(accepting, settings_of("b"), inward)
    yield where
    listener.close()


@contextmanager
def greeted(
    address: tuple[str, int], greeting: Greeting, member: str = "", source: str = "127.0.0.1"
) -> Iterator[socket.socket]:
    """Connect to b and greet it as `member`, by default as the greeting's member."""
    with socket.create_connection(address, PATIENCE_S, (source, 0)) as connection:
        own = settings_of(member or greeting.member)
        handshake.greet(connection, greeting, "b", own, time.monotonic() + PATIENCE_S)
        connection.settimeout(PATIENCE_S)
        yield connection


def send(connection: socket.socket, payload: bytes) -> None:
    frame = Frame(b"x", len(payload)).sealed(memoryview(payload))
    connection.sendall(WIRE.pack(frame) + payload)


def idle(stack: ExitStack, address: tuple[str, int], source: str, count: int) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(address, PATIENCE_S, (source, 0))) for _ in range(count)]


def test_idle_connections_do_not_lock_members_out(address: tuple[str, int], inward: Inward) -> None:
    with ExitStack() as stack:
        strangers = idle(stack, address, "127.0.0.1", CROWD)
        member = stack.enter_context(greeted(address, Greeting("a")))
        send(member, b"first")
        assert inward.payloads.get(timeout=PATIENCE_S) == ("a", b"first")
        strangers += idle(stack, address, "127.0.0.1", CROWD)
        for early in strangers[:CROWD]:
            early.settimeout(PATIENCE_S)
            assert early.recv(1) == b""  # closed to make room
        send(member, b"second")  # an authenticated member stays connected
        assert inward.payloads.get(timeout=PATIENCE_S) == ("a", b"second")


def test_crowding_peers_make_room_first(address: tuple[str, int]) -> None:
    with ExitStack() as stack:
        (slow,) = idle(stack, address, "127.0.0.2", 1)
        crowd = idle(stack, address, "127.0.0.1", CROWD)
        crowd[0].settimeout(PATIENCE_S)
        assert crowd[0].recv(1) == b""
        assert not select.select([slow], [], [], 0)[0]
        handshake.greet(slow, Greeting("a"), "b", settings_of("a"), time.monotonic() + PATIENCE_S)


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED])
def test_members_connect_once_there_are_files_again(
    inward: Inward, caplog: pytest.LogCaptureFixture, reason: int
) -> None:
    class Failing(socket.socket):
        failures = 2

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            if self.failures:
                self.failures -= 1
                raise OSError(reason, os.strerror(reason))
            return super().accept()

    with caplog.at_level(logging.WARNING), Failing() as accepting:
        accepting.bind(("127.0.0.1", 0))
        accepting.listen()
        listener = Listener(accepting, settings_of("b"), inward)
        try:
            with greeted(accepting.getsockname(), Greeting("a")) as member:
                send(member, b"late")
                assert inward.payloads.get(timeout=PATIENCE_S) == ("a", b"late")
        finally:
            listener.close()
    assert caplog.text.count(os.strerror(reason)) == 1


def test_a_member_s_frames_can_t_come_from_another(
    address: tuple[str, int], inward: Inward, caplog: pytest.LogCaptureFixture
) -> None:
    """mallory is a member with its own keys, and sends in a's name."""
    with caplog.at_level(logging.WARNING), socket.create_connection(address, PATIENCE_S) as connection:
        with pytest.raises(ImpostorError):
            handshake.greet(connection, Greeting("a"), "b", settings_of("mallory"), time.monotonic() + PATIENCE_S)
        connection.settimeout(PATIENCE_S)
        connection.sendall(bytes(32))
        try:
            send(connection, b"gradients")
            assert connection.recv(1) == b""
        except ConnectionError:
            pass  # closed while we wrote
    with greeted(address, Greeting("a")) as honest:
        send(honest, b"own")
        assert inward.payloads.get(timeout=PATIENCE_S) == ("a", b"own")
    assert any(record.message.startswith("b: refused ") for record in caplog.records)


def test_a_member_has_a_limit_of_connections_and_others_can_still_connect(
    address: tuple[str, int], inward: Inward
) -> None:
    with ExitStack() as stack:
        greeting = Greeting("mallory", FETCH)
        open_ = [stack.enter_context(greeted(address, greeting)) for _ in range(MOST_OF_A_STREAM + 1)]
        (refused,), _, _ = select.select(open_, [], [], PATIENCE_S)  # the one that was authenticated last
        assert refused.recv(1) == b""
        send(stack.enter_context(greeted(address, Greeting("a"))), b"here")
        assert inward.payloads.get(timeout=PATIENCE_S) == ("a", b"here")


def test_a_member_that_vanished_often_can_connect_again() -> None:
    """A host that vanishes closes no connection, so one of each earlier generation is still open."""

    class Lasting(Inward):
        def receiver(self, hello: Greeting) -> Receiver:
            return self

    inward, accepting = Lasting(), sockets.listen("127.0.0.1", PATIENCE_S)
    address = accepting.getsockname()
    with closing(Listener(accepting, settings_of("b"), inward)), ExitStack() as stack:

        def connected(generation: int) -> socket.socket:
            connection = stack.enter_context(greeted(address, Greeting("a", generation=generation)))
            send(connection, b"here")
            assert inward.payloads.get(timeout=PATIENCE_S) == ("a", b"here")
            return connection

        earlier = [connected(generation) for generation in range(MOST_OF_A_STREAM)]
        connected(MOST_OF_A_STREAM)
        assert earlier[0].recv(1) == b""
        stack.enter_context(greeted(address, Greeting("a", FETCH)))
        assert earlier[1].recv(1) == b""
        send(earlier[2], b"still open")
        assert inward.payloads.get(timeout=PATIENCE_S) == ("a", b"still open")


def test_answers_are_sent_with_the_options_of_frames() -> None:
    """A member that joins fetches its state over a connection that this side accepts and sends on."""

    class Serving(Inward):
        def serve(self, connection: socket.socket) -> None:
            congestion = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
            waits_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            self.payloads.put((str(waits_ms), congestion))

    inward, accepting = Serving(), sockets.listen("127.0.0.1", PATIENCE_S)
    settings = replace(settings_of("b"), timeout_s=77.0, congestion="reno")
    with closing(Listener(accepting, settings, inward)), greeted(accepting.getsockname(), Greeting("a", FETCH)):
        assert inward.payloads.get(timeout=PATIENCE_S) == ("77000", b"reno")


def test_a_generation_that_is_not_to_be_is_refused_by_name(
    address: tuple[str, int], inward: Inward, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), greeted(address, Greeting("mallory", generation=2**31)) as connection:
        assert connection.recv(1) == b""
    assert "mallory" in caplog.text and "2147483648" in caplog.text


def test_a_peer_may_come_again_as_soon_as_it_is_told_to_have_gone(address: tuple[str, int], inward: Inward) -> None:
    for number in range(20):
        with greeted(address, Greeting("a")) as connection:
            send(connection, bytes([number]))
            assert inward.payloads.get(timeout=PATIENCE_S) == ("a", bytes([number]))
        assert inward.ended.get(timeout=PATIENCE_S) == ("a", "")
