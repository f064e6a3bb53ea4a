"""The connections to a next hop: order by priority, an end after all was read, and reported failures."""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from testbed.plan import Route
from testbed.protocol import Probe
from testbed.sync.errors import SyncError
from testbed.sync.transport import handshake, sockets, tcpinfo
from testbed.sync.transport.frame import TAKEN, WELCOME, Frame, FrameFormat
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.outbox import Outbox, RouteTable
from testbed.sync.transport.send_queue import SendQueue
from testbed.sync.transport.sender import Sender
from tests.sync.keys import keys
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

#: A test's header holds the frame's number, and whether it is urgent.
HEADER_BYTES = 8
WIRE = FrameFormat(HEADER_BYTES)
MEMBERS = ("a", "b")
CHUNK = 256 * 1024
#: linux/tcp.h: the kernel closes such a connection without a packet to the peer.
TCP_REPAIR = 19


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def settings_of(member: str, timeout_s: float = PATIENCE_S, **more: Any) -> TransportSettings:
    return TransportSettings(member, keys(member, MEMBERS), timeout_s, **more)


def accept(listener: socket.socket) -> socket.socket:
    """Accept a connection of a, and authenticate it as b does."""
    connection, _ = listener.accept()
    assert handshake.answer(connection, settings_of("b"), time.monotonic() + PATIENCE_S).member == "a"
    sockets.acknowledge_at_once(connection)
    return connection


def sender(listener: socket.socket, failures: queue.Queue[tuple[str, str]], timeout_s: float = PATIENCE_S) -> Sender:
    settings = settings_of("a", timeout_s)
    return Sender("b", listener.getsockname(), settings, WIRE, lambda *what: failures.put(what))


def frame(index: int, urgent: bool = False, size: int = CHUNK) -> Frame:
    return Frame(struct.pack("<II", index, urgent), size)


def index_of(head: memoryview) -> tuple[int, bool]:
    index, urgent = struct.unpack("<II", WIRE.unpack(head).header)
    return index, bool(urgent)


def put(sending: Sender, index: int = 0, urgent: bool = False, size: int = CHUNK) -> None:
    sending.queue.put((1, index, not urgent), frame(index, urgent, size), memoryview(bytearray(size)))


def test_what_is_urgent_overtakes_what_waits(listener: socket.socket) -> None:
    failures: queue.Queue[tuple[str, str]] = queue.Queue()
    sending = sender(listener, failures)
    connection = accept(listener)
    # Nobody reads yet, so the first chunks fill the socket, and the rest waits in the queue.
    for index in reversed(range(100)):
        put(sending, index)
    last = int(max(item.priority[1] for item in sending.queue._heap))
    put(sending, last, urgent=True)
    with connection:
        order = []
        raw = memoryview(bytearray(WIRE.size + CHUNK))
        for _ in range(101):
            sockets.receive(connection, raw)
            order.append(index_of(raw[: WIRE.size]))
        usual = [index for index, urgent in order if not urgent]
        assert sorted(usual) == [*range(100)]
        assert usual.index(0) < 90 and usual[-50:] == sorted(usual[-50:])
        assert order.index((last, True)) == order.index((last, False)) - 1
    sending.abort()
    assert failures.empty()


def test_an_auxiliary_channel_sends_from_the_queue_that_it_was_given(listener: socket.socket) -> None:
    """An empty queue is false, and a new one without the direct connection's queue took its place."""
    direct = SendQueue()
    given = SendQueue(beside=direct)
    sending = Sender("b", listener.getsockname(), settings_of("a"), WIRE, lambda *what: None, 1, given)
    with accept(listener):
        assert sending.queue is given
        sending.abort()
    assert sending.join(PATIENCE_S)


def test_ending_waits_until_the_peer_has_read_everything(listener: socket.socket) -> None:
    sending = sender(listener, queue.Queue())
    connection = accept(listener)
    put(sending, size=50 * CHUNK)
    sending.finish()
    ended = threading.Event()
    threading.Thread(target=lambda: (sending.join(PATIENCE_S), ended.set()), daemon=True).start()
    with connection:
        sockets.receive(connection, memoryview(bytearray(WIRE.size + 50 * CHUNK)))
        assert not sockets.receive_or_end(connection, memoryview(bytearray(1)))
        assert not ended.wait(0.1)
    assert ended.wait(PATIENCE_S)


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets root alone close a connection without a word")
def test_ending_does_not_wait_for_a_peer_whose_close_was_lost(listener: socket.socket) -> None:
    sending = sender(listener, queue.Queue(), timeout_s=600.0)
    connection = accept(listener)
    put(sending)
    sending.finish()
    with connection:
        sockets.receive(connection, memoryview(bytearray(WIRE.size + CHUNK)))
        assert not sockets.receive_or_end(connection, memoryview(bytearray(1)))
        connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    assert sending.join(PATIENCE_S)


def test_a_member_that_leaves_waits_for_no_connection_to_a_peer_that_has_left() -> None:
    """The peer was named by a plan or a probe that came late."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    outbox = Outbox(settings_of("a", 2 * PATIENCE_S), HEADER_BYTES, {"b": address}, lambda *what: None)
    table = RouteTable(0, "a", frozenset({"b"}), ())
    outbox.connect(table)
    outbox.probe(Probe("b", CHUNK, 1.0))
    assert outbox.drain(PATIENCE_S, lambda channel, seconds: None) == ()
    with pytest.raises(SyncError) as caught:
        outbox.connect(table)
    assert (caught.value.rule, caught.value.member) == ("leaving", "a")
    outbox.probe(Probe("b", CHUNK, 1.0))
    assert outbox.drain(PATIENCE_S, lambda channel, seconds: None) == ()
    outbox.close()


def test_a_sender_is_idle_once_its_peer_has_everything(listener: socket.socket) -> None:
    sending = sender(listener, queue.Queue())
    with accept(listener) as connection:
        until(sending.idle)
        size = 500 * CHUNK  # more than the sockets of both ends hold
        put(sending, size=size)
        assert not sending.idle()
        sockets.receive(connection, memoryview(bytearray(WIRE.size + size)))
        until(sending.idle)
        sending.abort()


def test_a_peer_that_does_not_read_is_named(listener: socket.socket) -> None:
    outbox = Outbox(settings_of("a"), HEADER_BYTES, {"b": listener.getsockname()}, lambda *what: None)
    outbox.connect(RouteTable(0, "a", frozenset({"b"}), ()))
    size = 50 * CHUNK
    with accept(listener):
        outbox.put(["b"], (1,), frame(0, size=size), memoryview(bytearray(size)), lambda peer: None)
        assert outbox.drain(0.3, lambda channel, seconds: None) == ("b",)


def test_a_peer_that_leaves_late_takes_no_time_from_those_that_read(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c evaluates for longer than a round may last, and keeps its connection for frames that a forwards to b."""
    passed_s = 0.0

    def stay(channel: int, seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            if handshake.answer(connection, settings_of("b"), time.monotonic() + PATIENCE_S).channel:
                connection.sendall(WELCOME)
            sockets.receive_or_end(connection, memoryview(bytearray(1)))

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr("testbed.sync.transport.outbox.time", clock)
    peers = [threading.Thread(target=serve, daemon=True) for _ in range(2)]
    for peer in peers:
        peer.start()
    outbox = Outbox(settings_of("a", PATIENCE_S), HEADER_BYTES, {"b": listener.getsockname()}, lambda *what: None)
    table = RouteTable(0, "a", frozenset({"b"}), (Route("c", "b", ("a",)),))
    assert all(sending.await_connection(PATIENCE_S) for sending in outbox.connect(table))
    assert outbox.drain(PATIENCE_S, stay) == ()
    assert passed_s > 0
    for peer in peers:
        peer.join(PATIENCE_S)


def test_a_route_without_a_connection_relieves_no_queue_under_a_later_table(listener: socket.socket) -> None:
    """A member that counts on routes does not pace what it sends. Here it has no key of v, so no connection to it."""
    roster = dict.fromkeys(("b", "v"), listener.getsockname())
    outbox = Outbox(settings_of("a", PATIENCE_S), HEADER_BYTES, roster, lambda *what: None)
    first = RouteTable(0, "a", frozenset({"b"}), (Route("a", "b", ("v",)),))
    outbox.connect(first)
    outbox.follow(first)
    direct, auxiliary = outbox._senders["b", 0], outbox._senders["v", 2]
    assert direct.queue.relieved
    assert not auxiliary.await_connection(PATIENCE_S)
    outbox.follow(RouteTable(1, "a", frozenset({"b"}), ()))
    assert not direct.queue.relieved
    outbox.close()


def test_an_auxiliary_route_leaves_room_for_a_direct_connection_that_is_made_after_it(listener: socket.socket) -> None:
    """A later plan has a send frames to v, over which frames for b went before."""
    settings = TransportSettings("a", keys("a", ("a", "b", "v")), PATIENCE_S)
    roster = dict.fromkeys(("b", "v"), listener.getsockname())  # nobody accepts, so that frames stay in their queues
    outbox = Outbox(settings, HEADER_BYTES, roster, lambda *what: None)
    routes = (Route("a", "b", ("v",)),)
    for number, peers in enumerate(({"b"}, {"b", "v"})):
        table = RouteTable(number, "a", frozenset(peers), routes)
        outbox.connect(table)
        outbox.follow(table)
    outbox.put(["v"], (1,), frame(0), memoryview(bytearray(CHUNK)), lambda peer: None)
    for index in range(3):  # b's queue has frames to give away
        outbox.put(["b"], (1, index), frame(index), memoryview(bytearray(CHUNK)), lambda peer: None, table=1)
    assert outbox._senders["v", 2].queue._take_over() is None
    outbox.close()


def test_a_sender_s_time_still_counts_when_another_has_taken_its_place(listener: socket.socket) -> None:
    """One of several connections may have sent before another one failed."""
    outbox = Outbox(settings_of("a", 10.0), HEADER_BYTES, {"b": listener.getsockname()}, lambda *what: None)
    first = outbox._sender(("b", 0))
    first.failure, first.sending_s = "no connection", 3.0
    assert outbox._sender(("b", 0)) is not first
    assert outbox.sending_s() == 3.0
    outbox.close()


def test_an_auxiliary_route_carries_one_frame_until_that_was_taken(listener: socket.socket) -> None:
    settings = settings_of("a")
    sending = Sender("b", listener.getsockname(), settings, WIRE, lambda *_: None, channel=2)
    left: queue.Queue[int] = queue.Queue()
    connection = accept(listener)
    with connection:
        connection.sendall(WELCOME)
        for index in range(3):
            sent = partial(left.put, index)
            sending.queue.put((1, index), frame(index, size=4), memoryview(bytearray(4)), sent)
        raw = memoryview(bytearray(WIRE.size + 4))
        for index in range(3):
            sockets.receive(connection, raw)
            assert index_of(raw[: WIRE.size])[0] == index
            assert not WIRE.unpack(raw[: WIRE.size]).follows  # the pause before it would count as the path's time
            connection.settimeout(0.05)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(PATIENCE_S)
            assert left.empty()
            connection.sendall(TAKEN)
            assert left.get(timeout=PATIENCE_S) == index
    sending.abort()


def test_a_lost_peer_is_told(listener: socket.socket) -> None:
    failures: queue.Queue[tuple[str, str]] = queue.Queue()
    sending = sender(listener, failures)
    accept(listener).close()
    for _ in range(100):
        put(sending)
    assert failures.get(timeout=PATIENCE_S)[0] == "b"
    sending.abort()


def test_a_defect_in_what_follows_a_frame_is_told(listener: socket.socket) -> None:
    """A partial sum is encoded when the frame before it was sent, for which there may be no memory."""
    failures: queue.Queue[tuple[str, str]] = queue.Queue()
    sending = sender(listener, failures)
    with accept(listener):
        sending.queue.put((1,), frame(0, size=4), memoryview(bytearray(4)), Mock(side_effect=MemoryError))
        peer, reason = failures.get(timeout=PATIENCE_S)
        assert peer == "b" and "MemoryError" in reason
        sending.abort()


def test_a_frame_that_is_lost_while_another_stream_connects_is_told(listener: socket.socket) -> None:
    failures: queue.Queue[tuple[str, str]] = queue.Queue()
    settings = settings_of("a", PATIENCE_S, streams=2)
    sending = Sender("b", listener.getsockname(), settings, WIRE, lambda *what: failures.put(what))
    with accept(listener) as connection:  # of one stream; nobody greets the other one
        put(sending, size=50 * CHUNK)
        sockets.receive(connection, memoryview(bytearray(WIRE.size)))
        assert not len(sending.queue) and not sending.connected
    assert failures.get(timeout=PATIENCE_S)[0] == "b"
    sending.abort()


def test_a_peer_that_does_not_listen_is_told_only_when_something_is_to_be_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    failures: queue.Queue[tuple[str, str]] = queue.Queue()
    settings = settings_of("a", 0.3)
    outbox = Outbox(settings, HEADER_BYTES, {"b": address}, lambda *what: failures.put(what))
    (sending,) = outbox.connect(RouteTable(0, "a", frozenset({"b"}), ()))
    assert not sending.await_connection(PATIENCE_S)
    assert "refused" in sending.failure and failures.empty()
    outbox.put(["b"], (1,), frame(0, size=0), memoryview(b""), lambda peer: None)
    assert failures.get(timeout=PATIENCE_S)[0] == "b"
    outbox.close()


def test_connecting_ends_when_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    attempted = threading.Event()

    def refuse(*_: object) -> None:
        attempted.set()
        raise ConnectionRefusedError

    monkeypatch.setattr(sockets, "attempt", refuse)
    sending = Sender("b", ("127.0.0.1", 1), settings_of("a", 2 * PATIENCE_S), WIRE, lambda *_: None)
    assert attempted.wait(PATIENCE_S)
    sending.abort()
    assert sending.join(PATIENCE_S)
    assert not sending.await_connection(0)


@pytest.mark.parametrize("end", [Sender.abort, Sender.finish])
def test_a_wait_for_a_peer_that_takes_no_frames_yet_ends_when_it_is_given_up(
    listener: socket.socket, end: Callable[[Sender], None]
) -> None:
    sending = Sender("b", listener.getsockname(), settings_of("a", 600.0), WIRE, lambda *_: None, channel=1)
    with accept(listener):  # a peer that does not know the member's generation sends no WELCOME
        end(sending)
        assert sending.join(PATIENCE_S)
    assert not sending.connected


def test_an_attempt_to_connect_that_nobody_answers_ends_at_once_when_given_up(listener: socket.socket) -> None:
    listener.listen(0)
    with ExitStack() as stack:  # the kernel's full queue of connections accepts no other
        for _ in range(2):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listener.getsockname())
        # An attempt lasts for a part of the timeout, here twice as long as the test waits.
        timeout_s = 2 * PATIENCE_S / sockets.ATTEMPT_PART
        sending = sender(listener, queue.Queue(), timeout_s)
        assert not sending.await_connection(0.1)
        sending.abort()
        assert sending.join(PATIENCE_S) and not sending.connected


def test_the_path_is_measured(listener: socket.socket) -> None:
    sending = sender(listener, queue.Queue())
    connection = accept(listener)
    put(sending)
    with connection:
        sockets.receive(connection, memoryview(bytearray(WIRE.size + CHUNK)))
        sample = sending.sample()
        assert sample is not None and CHUNK <= sample.bytes_acked <= CHUNK + 200 and 0 < sample.min_rtt_s < 1
        waited_s, frames = sending.queue.queued()
        assert frames == 1 and 0 <= waited_s < 60
        assert sending.sample() is None
        assert tcpinfo.read(connection).bytes_acked <= 1 + 48  # the answer to the greeting
    sending.abort()


def test_what_the_path_did_not_take_is_seen(listener: socket.socket) -> None:
    sending = sender(listener, queue.Queue())
    connection = accept(listener)
    with connection:
        for _ in range(100):  # more than the buffers of both kernels hold
            put(sending)
        until(lambda: any(info.unsent_bytes for info in sending.look().values()))
    sending.abort()


def test_an_address_may_come_late_but_not_never() -> None:
    with pytest.raises(SyncError) as caught:
        sockets.listen("192.0.2.1", 0.2)
    assert (caught.value.rule, caught.value.given) == ("address", "192.0.2.1")
    with sockets.listen("127.0.0.1", 5) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("address", ["0.0.0.0", "ä..b"])
def test_an_address_to_which_no_peer_can_connect_is_refused(address: str) -> None:
    with pytest.raises(SyncError) as caught:
        sockets.listen(address, PATIENCE_S)
    assert (caught.value.rule, caught.value.given) == ("address", address)


def test_a_congestion_control_that_is_not_there_is_refused_with_a_remedy() -> None:
    with pytest.raises(SyncError, match=r"modprobe tcp_none-such"):
        sockets.check_congestion("none-such")
    sockets.check_congestion("reno")  # every kernel has it


def test_several_connections_share_the_work(listener: socket.socket) -> None:
    settings = settings_of("a", streams=3, congestion="reno")
    sending = Sender("b", listener.getsockname(), settings, WIRE, lambda *_: None)
    connections = [accept(listener) for _ in range(3)]
    assert sending.await_connection(PATIENCE_S)
    for index in range(30):
        put(sending, index)
    sending.finish()
    got = []
    raw = memoryview(bytearray(WIRE.size + CHUNK))
    for connection in connections:
        with connection:
            while sockets.receive_or_end(connection, raw):
                got.append(index_of(raw[: WIRE.size])[0])
    assert sorted(got) == [*range(30)]
    sending.join(PATIENCE_S)
