"""The way to a next hop: the front goes first, everything is read before it ends, failures are told."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from testbed.sync import sockets, tcpinfo
from testbed.sync.errors import SyncError
from testbed.sync.sender import Sender

pytestmark = pytest.mark.unit

GREETING = b"hello"
CHUNK = 256 * 1024


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def sender(listener: socket.socket, failures: queue.Queue[tuple[str, str]], patience_s: float = 10.0) -> Sender:
    return Sender("b", listener.getsockname(), GREETING, patience_s, lambda *what: failures.put(what))


def test_what_is_urgent_overtakes_what_waits(listener: socket.socket) -> None:
    failures: queue.Queue[tuple[str, str]] = queue.Queue()
    sending = sender(listener, failures)
    connection, _ = listener.accept()
    # Nobody reads yet, so the first chunks fill the socket and the rest waits in the queue.
    for index in reversed(range(100)):
        sending.put((1, index, 1, 0), index.to_bytes(4, "little"), memoryview(bytes(CHUNK)))
    sending.put((1, 50, 0, 0), (1050).to_bytes(4, "little"), memoryview(bytes(CHUNK)))
    with connection:
        sockets.receive(connection, memoryview(bytearray(len(GREETING))))
        order = []
        frame = memoryview(bytearray(4 + CHUNK))
        for _ in range(101):
            sockets.receive(connection, frame)
            order.append(int.from_bytes(frame[:4], "little"))
        assert sorted(order) == [*range(100), 1050]
        assert order.index(0) < 90 and order[-50:] == sorted(order[-50:])
        assert order.index(1050) == order.index(50) - 1
    sending.abort()
    assert failures.empty()


def test_ending_waits_until_the_peer_has_read_everything(listener: socket.socket) -> None:
    sending = sender(listener, queue.Queue())
    connection, _ = listener.accept()
    sending.put((1, 0, 0, 0), b"head", memoryview(bytes(50 * CHUNK)))
    sending.finish()
    ended = threading.Event()
    threading.Thread(target=lambda: (sending.join(20), ended.set()), daemon=True).start()
    assert not ended.wait(0.3)
    with connection:
        sockets.receive(connection, memoryview(bytearray(len(GREETING) + 4 + 50 * CHUNK)))
        assert not sockets.receive_or_end(connection, memoryview(bytearray(1)))
    assert ended.wait(10)


def test_a_lost_peer_is_told(listener: socket.socket) -> None:
    failures: queue.Queue[tuple[str, str]] = queue.Queue()
    sending = sender(listener, failures)
    listener.accept()[0].close()
    for _ in range(100):
        sending.put((1, 0, 0, 0), b"head", memoryview(bytes(CHUNK)))
    assert failures.get(timeout=10)[0] == "b"
    sending.abort()


def test_a_peer_that_does_not_listen_is_told_only_when_something_is_to_be_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        pass_address = closed.getsockname()
    failures: queue.Queue[tuple[str, str]] = queue.Queue()
    sending = Sender("b", pass_address, GREETING, 0.3, lambda *what: failures.put(what))
    assert not sending.await_connection(10)
    assert "refused" in sending.failure and failures.empty()
    sending.put((1, 0, 0, 0), b"head", memoryview(b""))
    assert failures.get(timeout=5) == ("b", sending.failure)


def test_connecting_ends_when_it_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    sending = Sender("b", address, GREETING, 600.0, lambda *_: None)
    time.sleep(0.05)
    sending.abort()
    sending.join(5)
    assert not sending.await_connection(0)


def test_an_attempt_to_connect_that_nobody_answers_ends_at_once_when_given_up(listener: socket.socket) -> None:
    listener.listen(0)
    with ExitStack() as stack:  # a full queue of connections that nobody accepts lets no other in
        for _ in range(2):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listener.getsockname())
        sending = sender(listener, queue.Queue(), patience_s=600.0)
        assert not sending.await_connection(0.5)
        began = time.monotonic()
        sending.abort()
        sending.join(5)
        assert time.monotonic() - began < 5 and not sending.connected


def test_the_path_is_measured(listener: socket.socket) -> None:
    sending = sender(listener, queue.Queue())
    connection, _ = listener.accept()
    sending.put((1, 0, 0, 0), b"head", memoryview(bytes(CHUNK)))
    with connection:
        sockets.receive(connection, memoryview(bytearray(len(GREETING) + 4 + CHUNK)))
        sample = sending.sample()
        assert sample is not None and sample.peer == "b"
        assert CHUNK <= sample.bytes <= CHUNK + 100 and 0 < sample.rtt_s < 1
        assert sending.sample() is None
        assert tcpinfo.read(connection).bytes_acked <= 1
    sending.abort()


def test_an_address_may_come_late_but_not_never() -> None:
    with pytest.raises(SyncError, match=r"192\.0\.2\.1 within 0 s"):
        sockets.listen("192.0.2.1", 0.2)
    with sockets.listen("127.0.0.1", 5) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
