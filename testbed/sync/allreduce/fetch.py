"""Requests between members, over connections of their own, to the address at which the other member listens.

    client     greeting on channel FETCH       requests, each: kind, epoch, round, start, stop
    server                                     answers, each: length of the note, length of the data, SHA-256 of both
                                               note (JSON), data

A connection's requests are answered in their order. The client sends some before it has the first answer.
After a member was lost, a request fetches means that this member lacks and another one holds; after a member joined,
the state that it starts from. The client knows the largest possible size of the data, and allocates no more than that.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, suppress
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from testbed.protocol import MOST_SPANS, MeanSlice
from testbed.schema import Number, ProtocolError, Text, brief, decode_as
from testbed.sync.errors import SyncError
from testbed.sync.transport import Greeting, TransportSettings, handshake, sockets
from testbed.sync.transport.frame import FETCH

_REQUEST = struct.Struct("<BIIQQ")
_ANSWER = struct.Struct("<IQ32s")

#: The longest note: it names a round's slices and their members.
MAX_NOTE_BYTES = 4 * 1024 * 1024

#: Seconds between two greetings to a peer that does not have this member's key yet.
_GREET_AGAIN_S = 0.1

#: Seconds between two checks of whether the fetch was given up.
_POLL_S = 0.1

#: The most requests whose answers a client waits for: a few, so that they never fill the server's buffer.
AHEAD = 16


class Wanted(IntEnum):
    """The kind of a request."""

    MEANS = 1
    STATE = 2


class FetchRequest(NamedTuple):
    """A request for means, or for the state that a new member starts from."""

    what: Wanted
    #: The generation: for the state, the one that begins with the new member.
    epoch: int
    #: For means: the round, and the elements [start, stop).
    round: int = 0
    start: int = 0
    stop: int = 0


class FetchNote(Struct, frozen=True, forbid_unknown_fields=True, tag_field="of"):
    """Base class of the notes that describe an answer's data."""


class MeansNote(FetchNote, frozen=True, tag="means"):
    """The note of fetched means: each slice of elements with the members whose updates the mean holds."""

    slices: Annotated[tuple[MeanSlice, ...], Meta(max_length=MOST_SPANS)]


class StateNote(FetchNote, frozen=True, tag="state"):
    """The note of a fetched state: the names of its parts, and the `round` after which the state was taken."""

    round: Number
    parts: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=256)]


class Refusal(FetchNote, frozen=True, tag="refusal"):
    """The note of an answer without data: the reason."""

    why: Text


_NOTE = msgspec.json.Decoder(MeansNote | StateNote | Refusal)


class FetchAnswer(NamedTuple):
    """The data of an answer, and the note that describes them."""

    note: MeansNote | StateNote | Refusal
    data: memoryview


def fetch(
    peer: str,
    address: tuple[str, int],
    settings: TransportSettings,
    request: FetchRequest,
    most_bytes: int,
    given_up: threading.Event,
) -> FetchAnswer:
    """Send a request to another member, and return its answer, which has at most `most_bytes` of data.

    See `fetch_all`.
    """
    (answer,) = fetch_all(peer, address, settings, [(request, most_bytes)], given_up)
    return answer


def fetch_all(
    peer: str,
    address: tuple[str, int],
    settings: TransportSettings,
    requests: Sequence[tuple[FetchRequest, int]],
    given_up: threading.Event,
) -> Generator[FetchAnswer, None, None]:
    """Send requests to another member, each with the most bytes of data in its answer, and yield the answers in order.

    `given_up` is set once the caller needs no answer any more.

    Raises:
        SyncError: The peer does not answer in time, refuses, an answer is invalid, or the fetch was given up.
    """
    try:
        with closing(_connected(peer, address, settings, given_up)) as connection:
            sent = 0
            for number, (_, most_bytes) in enumerate(requests):
                connection.settimeout(settings.timeout_s)
                connection.sendall(b"".join(_REQUEST.pack(*its) for its, _ in requests[sent : number + AHEAD]))
                sent = number + AHEAD
                yield _receive(connection, most_bytes, settings.timeout_s, given_up)
    except OSError as error:
        what = requests[0][0].what.name.lower()
        raise SyncError(f"could not fetch the {what} of {peer} from {address[0]}:{address[1]}: {error}") from error


def _connected(
    peer: str, address: tuple[str, int], settings: TransportSettings, given_up: threading.Event
) -> socket.socket:
    """Return an authenticated connection to a peer.

    A peer closes the connection of a member whose key it does not have yet: the controller sends the key of a member
    that joins to all at once, and the joining member may be the first to get the message. So the greeting is repeated.
    """
    deadline = time.monotonic() + settings.timeout_s
    while True:
        with ExitStack() as on_failure:
            opened = on_failure.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sockets.tune(opened, settings.timeout_s, settings.congestion)
            sockets.attempt(opened, address, deadline, given_up)
            greeting = Greeting(settings.member, FETCH)
            try:
                connection = handshake.greet(opened, greeting, peer, settings, deadline, given_up.is_set)
            except ConnectionError:
                if time.monotonic() + _GREET_AGAIN_S > deadline:
                    raise
            else:
                on_failure.pop_all()
                return connection
        given_up.wait(_GREET_AGAIN_S)


def receive_request(connection: socket.socket) -> FetchRequest | None:
    """Wait for a peer's next request. Returns None after the last one.

    Raises:
        SyncError: The request is malformed.
    """
    raw = memoryview(bytearray(_REQUEST.size))
    if not sockets.receive_or_end(connection, raw):
        return None
    what, epoch, number, start, stop = _REQUEST.unpack(raw)
    if what not in tuple(Wanted) or start > stop:
        raise SyncError(f"malformed request: kind {what}, elements [{start}, {stop})", rule="request")
    return FetchRequest(Wanted(what), epoch, number, start, stop)


def send_answer(connection: socket.socket, answer: FetchAnswer) -> None:
    """Send the answer to a peer's request: its data, and the note that describes them.

    The connection's timeout limits each wait for the peer to take more bytes, as `fetch` limits each wait for more.

    Raises:
        TimeoutError: The peer took no bytes for as long as the connection's timeout.
    """
    note = msgspec.json.encode(answer.note)
    digest = hashlib.sha256(note)
    digest.update(answer.data)
    head = _ANSWER.pack(len(note), len(answer.data), digest.digest()) + note
    piece = sockets.RECORD_BYTES  # `sendall` would take the timeout for the whole of a state, which may be gigabytes
    for part in (memoryview(head + answer.data[:piece]), answer.data[piece:]):
        sent = 0
        while sent < len(part):
            sent += connection.send(part[sent : sent + piece])


def _receive(connection: socket.socket, most_bytes: int, timeout_s: float, given_up: threading.Event) -> FetchAnswer:
    head = memoryview(bytearray(_ANSWER.size))
    _fill(connection, head, timeout_s, given_up)
    note_bytes, data_bytes, digest = _ANSWER.unpack(head)
    if note_bytes > MAX_NOTE_BYTES or data_bytes > most_bytes:
        raise SyncError(
            f"the answer has {note_bytes} and {data_bytes} bytes; at most {most_bytes} were requested",
            rule="size",
            given=note_bytes + data_bytes,
        )
    whole = memoryview(bytearray(note_bytes + data_bytes))
    _fill(connection, whole, timeout_s, given_up)
    if hashlib.sha256(whole).digest() != digest:
        raise SyncError("the answer does not match its SHA-256", rule="hash")
    try:
        note = decode_as(_NOTE, whole[:note_bytes])
    except ProtocolError as error:
        raise SyncError(f"the answer's note is malformed: {error}", rule="note") from error
    if isinstance(note, Refusal):
        raise SyncError(note.why, rule="refused")
    return FetchAnswer(note, whole[note_bytes:])


def _fill(connection: socket.socket, into: memoryview, timeout_s: float, given_up: threading.Event) -> None:
    """Receive as many bytes as `into` has room for.

    Raises:
        TimeoutError: Nothing came for `timeout_s`, or the fetch was given up.
        ConnectionError: The peer closed the connection before `into` was full.
    """
    connection.settimeout(_POLL_S)
    got, heard_s = 0, time.monotonic()
    while got < len(into):
        if given_up.is_set() or time.monotonic() - heard_s > timeout_s:
            raise TimeoutError(f"{got} of {len(into)} bytes of the answer came in time")
        with suppress(TimeoutError):
            if not (count := connection.recv_into(into[got:])):
                raise ConnectionError(f"the peer closed the connection after {got} of {len(into)} bytes")
            got, heard_s = got + count, time.monotonic()


def refusal(why: str) -> FetchAnswer:
    """Return an answer that refuses a request."""
    return FetchAnswer(Refusal(brief(why)), memoryview(b""))
