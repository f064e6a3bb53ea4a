"""Greetings: both ends prove that they have their common key, and no message can be used for anything else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from testbed.sync.errors import FrameError, ImpostorError
from testbed.sync.transport import handshake
from testbed.sync.transport.frame import FETCH, NONCE_BYTES, Greeting
from tests.sync.keys import MEMBERS, keys, settings_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

ANSWER_BYTES = NONCE_BYTES + 32


def soon() -> float:
    return time.monotonic() + PATIENCE_S


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@pytest.fixture
def listening(pair: tuple[socket.socket, socket.socket]) -> Iterator[Future[Greeting]]:
    """Let b answer at the second end of the pair."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(handshake.answer, pair[1], settings_of("b"), soon())
        pair[0].close()


def receive(connection: socket.socket, size: int) -> bytes:
    return connection.recv(size, socket.MSG_WAITALL)


def test_two_members_know_each_other(pair: tuple[socket.socket, socket.socket], listening: Future[Greeting]) -> None:
    greeting = Greeting("a", FETCH, 3, 2**32 - 1)
    handshake.greet(pair[0], greeting, "b", settings_of("a"), soon())
    assert listening.result(PATIENCE_S) == greeting
    assert pair[0].gettimeout() is None is pair[1].gettimeout()


def test_a_member_can_t_greet_as_another(
    pair: tuple[socket.socket, socket.socket], listening: Future[Greeting]
) -> None:
    own = settings_of("mallory")
    with pytest.raises(ImpostorError) as caught:
        handshake.greet(pair[0], Greeting("a"), "b", own, soon())
    assert (caught.value.rule, caught.value.member) == ("key", "b")
    pair[0].sendall(bytes(32))  # mallory goes on nevertheless
    with pytest.raises(ImpostorError) as caught:
        listening.result(PATIENCE_S)
    assert (caught.value.rule, caught.value.member) == ("key", "a")


def test_a_connection_without_the_key_is_refused(
    pair: tuple[socket.socket, socket.socket], listening: Future[Greeting]
) -> None:
    pair[0].sendall(Greeting("stranger").pack(bytes(NONCE_BYTES)))
    with pytest.raises(FrameError) as caught:
        listening.result(PATIENCE_S)
    assert (caught.value.rule, caught.value.member) == ("unknown-member", "stranger")


def test_a_member_does_not_take_another_for_the_one_that_it_looks_for(
    pair: tuple[socket.socket, socket.socket], listening: Future[Greeting]
) -> None:
    """mallory gave b's address as its own, and a connects there."""
    with pytest.raises(ImpostorError) as caught:
        handshake.greet(pair[0], Greeting("a"), "mallory", settings_of("a"), soon())
    assert (caught.value.rule, caught.value.member) == ("key", "mallory")


def test_what_a_member_said_once_is_worth_nothing_a_second_time(
    pair: tuple[socket.socket, socket.socket], listening: Future[Greeting]
) -> None:
    proof = handshake._proof
    said = Greeting("a").pack(bytes(NONCE_BYTES))
    earlier = proof(keys("a", MEMBERS)["b"], b"connects", said, "b", b"another nonce..."[:NONCE_BYTES])
    pair[0].sendall(said)
    receive(pair[0], ANSWER_BYTES)
    pair[0].sendall(earlier)
    with pytest.raises(ImpostorError) as caught:
        listening.result(PATIENCE_S)
    assert (caught.value.rule, caught.value.member) == ("key", "a")


def test_a_proof_can_t_be_sent_back(pair: tuple[socket.socket, socket.socket], listening: Future[Greeting]) -> None:
    pair[0].sendall(Greeting("a").pack(bytes(NONCE_BYTES)))
    pair[0].sendall(receive(pair[0], ANSWER_BYTES)[NONCE_BYTES:])
    with pytest.raises(ImpostorError) as caught:
        listening.result(PATIENCE_S)
    assert (caught.value.rule, caught.value.member) == ("key", "a")


@pytest.mark.parametrize("claimed", [Greeting("a", 1), Greeting("a", 0, 1), Greeting("a", 0, 0, 9)])
def test_a_proof_is_for_one_channel_stream_and_generation(
    pair: tuple[socket.socket, socket.socket], listening: Future[Greeting], claimed: Greeting
) -> None:
    """An attacker on the path changes a's greeting."""
    said = claimed.pack(bytes(NONCE_BYTES))
    pair[0].sendall(said)
    nonce = receive(pair[0], ANSWER_BYTES)[:NONCE_BYTES]
    honest = Greeting("a").pack(bytes(NONCE_BYTES))
    pair[0].sendall(handshake._proof(keys("a", MEMBERS)["b"], b"connects", honest, "b", nonce))
    with pytest.raises(ImpostorError) as caught:
        listening.result(PATIENCE_S)
    assert (caught.value.rule, caught.value.member) == ("key", "a")


def test_a_greeting_that_comes_byte_by_byte_ends_at_its_deadline(pair: tuple[socket.socket, socket.socket]) -> None:
    ended = threading.Event()

    def trickle() -> None:
        for byte in Greeting("a").pack(bytes(NONCE_BYTES)):
            if ended.wait(0.05):
                return
            pair[0].sendall(bytes([byte]))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(trickle)
        with pytest.raises(TimeoutError):
            handshake.answer(pair[1], settings_of("b"), time.monotonic() + 0.3)
        ended.set()
