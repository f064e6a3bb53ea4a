"""Bytes that one member asks another for, over a connection of their own to where that one listens for its peers.

    who asks     greeting on channel FETCH     ask: what, epoch, round, start, stop
    who answers                             answer: length of the note, length of the data, SHA-256 of both
                                            note (JSON), data

Used when a member was lost or came: for means that this member lacks and another one holds, and for the state that a
new member begins from. Who asks knows how many bytes of data there can be, and sets nothing aside for more.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from testbed.protocol import MOST_SPANS, MeanSlice
from testbed.schema import Number, ProtocolError, Text, brief, decode_as
from testbed.sync.errors import SyncError
from testbed.sync.transport import Greeting, TransportSettings, handshake, sockets
from testbed.sync.transport.frame import FETCH

_REQUEST = struct.Struct("<BIIQQ")
_ANSWER = struct.Struct("<IQ32s")

#: A note names a round's slices, and their members; one that is longer is none.
MAX_NOTE_BYTES = 4 * 1024 * 1024


class Wanted(IntEnum):
    """What is asked for."""

    MEANS = 1
    STATE = 2


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Means: those of the elements [start, stop) of `round`. State: what a member of `epoch` begins from."""

    what: Wanted
    epoch: int
    round: int = 0
    start: int = 0
    stop: int = 0


class FetchNote(Struct, frozen=True, forbid_unknown_fields=True, tag_field="of"):
    """Base of what is to be known of an answer's data."""


class MeansNote(FetchNote, frozen=True, tag="means"):
    """Whose updates the means are of."""

    slices: Annotated[tuple[MeanSlice, ...], Meta(max_length=MOST_SPANS)]


class StateNote(FetchNote, frozen=True, tag="state"):
    """The state of these `parts` is that after `round`."""

    round: Number
    parts: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=256)]


class Refusal(FetchNote, frozen=True, tag="refusal"):
    """What was asked for can't be had."""

    why: Text


_NOTE = msgspec.json.Decoder(MeansNote | StateNote | Refusal)


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """`data`, and what is to be known of it."""

    note: MeansNote | StateNote | Refusal
    data: memoryview


def fetch(
    peer: str, address: tuple[str, int], settings: TransportSettings, request: FetchRequest, most_bytes: int
) -> FetchAnswer:
    """What the member `peer`, which listens at `address`, answers to the one whose `settings` they are.

    SyncError when it does not within their timeout, when it says why not, or when what comes is not what was sent.
    """
    try:
        deadline = time.monotonic() + settings.timeout_s
        greeting = Greeting(settings.member, FETCH)
        with (
            closing(socket.create_connection(address, settings.timeout_s)) as opened,
            closing(handshake.greet(opened, greeting, peer, settings, deadline)) as connection,
        ):
            connection.settimeout(settings.timeout_s)
            connection.sendall(_pack(request))
            return _receive(connection, most_bytes)
    except OSError as error:
        raise SyncError(f"{request.what.name.lower()} of {address[0]}:{address[1]}: {error}") from error


def receive_request(connection: socket.socket) -> FetchRequest:
    """What a peer wants that greeted on the channel for that; SyncError when it is nothing there is."""
    raw = memoryview(bytearray(_REQUEST.size))
    sockets.receive(connection, raw)
    what, epoch, number, start, stop = _REQUEST.unpack(raw)
    if what not in tuple(Wanted) or start > stop:
        raise SyncError(f"nothing to be asked for: {what}, [{start}, {stop})", rule="request")
    return FetchRequest(Wanted(what), epoch, number, start, stop)


def send_answer(connection: socket.socket, answer: FetchAnswer) -> None:
    """Answer a peer that asked."""
    note = msgspec.json.encode(answer.note)
    digest = hashlib.sha256(note)
    digest.update(answer.data)
    sockets.send_all(connection, _ANSWER.pack(len(note), len(answer.data), digest.digest()) + note, answer.data)


def _pack(request: FetchRequest) -> bytes:
    return _REQUEST.pack(request.what, request.epoch, request.round, request.start, request.stop)


def _receive(connection: socket.socket, most_bytes: int) -> FetchAnswer:
    head = memoryview(bytearray(_ANSWER.size))
    sockets.receive(connection, head)
    note_bytes, data_bytes, digest = _ANSWER.unpack(head)
    if note_bytes > MAX_NOTE_BYTES or data_bytes > most_bytes:
        raise SyncError(
            f"an answer of {note_bytes} and {data_bytes} bytes; at most {most_bytes} were asked for",
            rule="size",
            given=note_bytes + data_bytes,
        )
    whole = memoryview(bytearray(note_bytes + data_bytes))
    sockets.receive(connection, whole)
    if hashlib.sha256(whole).digest() != digest:
        raise SyncError("an answer whose hash is another than it says", rule="hash")
    try:
        note = decode_as(_NOTE, whole[:note_bytes])
    except ProtocolError as error:
        raise SyncError(f"an answer with a note that is none: {error}", rule="note") from error
    if isinstance(note, Refusal):
        raise SyncError(note.why, rule="refused")
    return FetchAnswer(note, whole[note_bytes:])


def refusal(why: str) -> FetchAnswer:
    """The answer to what can't be had."""
    return FetchAnswer(Refusal(brief(why)), memoryview(b""))
