"""Handovers of state: a new member loads another one's state, up to a size that it knows from its own model."""

from __future__ import annotations

import hashlib
import io
import socket
import struct
import threading
import time
import weakref
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from testbed.protocol import MeanSlice
from testbed.sync.allreduce.fetch import (
    FetchAnswer,
    FetchRequest,
    MeansNote,
    StateNote,
    Wanted,
    fetch,
    receive_request,
    refusal,
    send_answer,
)
from testbed.sync.allreduce.handover import StateHandover, most_bytes, packed, unpack
from testbed.sync.errors import SyncError
from testbed.sync.transport import TransportSettings, handshake
from tests.sync.keys import keys
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

OLD, NEW = (TransportSettings(name, keys(name, ("old", "new")), 10.0) for name in ("old", "new"))
REQUEST = FetchRequest(Wanted.STATE, 3)


def parts_of(steps: int = 0, width: int = 64) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
    """Return a model and its optimizer after some steps."""
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    for _ in range(steps):
        model(torch.ones(width)).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


@contextmanager
def answering(answer: bytes, refused: int = 0) -> Iterator[tuple[str, int]]:
    """Run a peer that closes `refused` greetings, and answers the next request with these bytes. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(refused):
                with listener.accept()[0] as connection:
                    connection.recv(4096)
            with listener.accept()[0] as connection:
                handshake.answer(connection, OLD, time.monotonic() + PATIENCE_S)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join()


def test_a_source_that_claims_64_gib_is_refused_before_room_is_set_aside() -> None:
    parts = parts_of()
    claim = struct.pack("<IQ32s", 0, 1 << 36, b"")
    with answering(claim) as address, pytest.raises(SyncError) as caught:
        fetch("old", address, NEW, REQUEST, most_bytes(parts), threading.Event())
    assert (caught.value.rule, caught.value.given) == ("size", 1 << 36)
    assert most_bytes(parts) < 2**21


def test_a_source_that_has_no_key_of_this_member_yet_is_greeted_again() -> None:
    with answering(struct.pack("<IQ32s", 0, 1 << 36, b""), refused=2) as address, pytest.raises(SyncError) as caught:
        fetch("old", address, NEW, REQUEST, 1, threading.Event())
    assert caught.value.rule == "size", "the third greeting was answered"


def test_the_state_of_a_member_that_has_trained_fits_into_what_one_that_comes_allows() -> None:
    for width in (1, 64, 512):
        trained, fresh = parts_of(steps=3, width=width), parts_of(width=width)
        state = packed(7, trained)
        assert len(state.data) <= most_bytes(fresh)
        assert unpack(state, fresh) == 7
        assert torch.equal(trained["model"].state_dict()["weight"], fresh["model"].state_dict()["weight"])


def state(data: bytes, parts: tuple[str, ...] = ("model", "optimizer")) -> FetchAnswer:
    return FetchAnswer(StateNote(7, parts), memoryview(data))


def bomb() -> bytes:
    """Return 64 MiB of zeros in 64 KiB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(2**26))
    return file.getvalue()


def other_model() -> bytes:
    return bytes(packed(7, {**parts_of(width=8)}).data)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (state(b""), "unreadable"),
        (state(b"PK" * 100), "unreadable"),
        (state(bomb()), "size"),
        (state(other_model()), "unreadable"),
        (state(b"", ("model",)), "parts"),
        (FetchAnswer(MeansNote(()), memoryview(b"")), "parts"),
    ],
)
def test_an_invalid_state_names_its_source(answer: FetchAnswer, rule: str) -> None:
    handover = StateHandover("old")
    with pytest.raises(SyncError) as caught:
        handover.share(parts_of(), lambda source, most: answer)
    assert (caught.value.rule, caught.value.member) == (rule, "old")


@pytest.mark.parametrize(
    "note", [b"{}", b'{"of":"state","round":-1,"parts":[]}', b'{"of":"means","slices":[{}]}', b"[" * 1000, b"\xff"]
)
def test_an_invalid_note_is_refused(note: bytes) -> None:
    answer = struct.pack("<IQ32s", len(note), 0, hashlib.sha256(note).digest()) + note
    with answering(answer) as address, pytest.raises(SyncError) as caught:
        fetch("old", address, NEW, REQUEST, 10, threading.Event())
    assert caught.value.rule == "note"


@pytest.mark.parametrize("note", [MeansNote((MeanSlice(0, 2, ("a", "b"), 2.0),)), StateNote(3, ("model",))])
def test_what_is_answered_arrives(note: MeansNote | StateNote) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_answer(theirs, FetchAnswer(note, memoryview(b"data")))
        answer = ours.recv(4096)
    with answering(answer) as address:
        got = fetch("old", address, NEW, REQUEST, 4, threading.Event())
    assert got.note == note and bytes(got.data) == b"data"


def test_a_refusal_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_answer(theirs, refusal("there is none"))
        answer = ours.recv(4096)
    with answering(answer) as address, pytest.raises(SyncError) as caught:
        fetch("old", address, NEW, REQUEST, 4, threading.Event())
    assert caught.value.rule == "refused"


class SlowConnection:
    """A connection that takes 1,000 bytes in a second. As Python's, it takes its timeout for each call as a whole."""

    def __init__(self, timeout_s: float) -> None:
        self.came = bytearray()
        self._timeout_s = timeout_s

    def send(self, data: memoryview) -> int:
        self.came += data[:1000]
        return min(len(data), 1000)

    def sendmsg(self, parts: tuple[bytes, memoryview]) -> int:
        return self.send(memoryview(b"".join(parts)))

    def sendall(self, data: memoryview) -> None:
        if len(data) > 1000 * self._timeout_s:
            raise TimeoutError
        self.came += data


def test_a_state_that_takes_longer_than_the_timeout_arrives_if_its_bytes_keep_coming() -> None:
    connection, data = SlowConnection(timeout_s=10.0), bytes(range(250)) * 200
    send_answer(connection, state(data))  # type: ignore[arg-type]
    _, size, digest = struct.unpack_from("<IQ32s", connection.came)
    sent = bytes(connection.came[struct.calcsize("<IQ32s") :])
    assert sent.endswith(data) and size == len(data) and digest == hashlib.sha256(sent).digest()


def test_a_fetch_that_is_given_up_does_not_wait_for_its_source() -> None:
    new, given_up = TransportSettings("new", keys("new", ("old", "new")), 2 * PATIENCE_S), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                handshake.answer(connection, OLD, time.monotonic() + PATIENCE_S)
                receive_request(connection)
                given_up.set()
                connection.recv(1)  # until the other end closes

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(SyncError):
            fetch("old", listener.getsockname(), new, REQUEST, 4, given_up)
        assert given_up.is_set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_packed_state_is_dropped_after_the_first_round_of_the_new_member() -> None:
    handover = StateHandover("")
    handover.share(parts_of(), lambda source, most: refusal("nobody is asked"))
    handover.expect(REQUEST.epoch)
    handover.offer(7)
    packed_state = weakref.ref(handover.answer("old", REQUEST, 10.0).data)
    handover.offer(7)  # another step before the next round: the new member may still ask
    assert handover.answer("old", REQUEST, 10.0).note == StateNote(7, ("model", "optimizer"))
    handover.offer(8)
    assert packed_state() is None
    assert handover.answer("old", REQUEST, 0.0).note != StateNote(7, ("model", "optimizer"))
