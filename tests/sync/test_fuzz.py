"""Frames that are almost right, from a peer with its key: each ends a connection, and none harms a round."""

from __future__ import annotations

import random
import resource
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from testbed.plan import Plan, Route
from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, Kind
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.errors import FrameError
from testbed.sync.transport import handshake
from testbed.sync.transport.frame import Frame, FrameFormat, Greeting
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.listener import Listener, Received, dispatch
from tests.sync.keys import keys
from tests.sync.plans import names, star
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

MEMBERS = names(4)
ELEMENTS, CHUNK = 3000, 1024
PLAN = Plan(
    3,
    MEMBERS,
    (star(MEMBERS, "m0"),),
    CHUNK,
    auxiliary=(Route("m1", "m2", ("m3",)), Route("m2", "m0", ("m1",))),
)
FRAMES = 10_000


def settings_of(member: str) -> TransportSettings:
    return TransportSettings(member, keys(member, MEMBERS), 0.5, generation=PLAN.epoch)


SETTINGS = settings_of("m0")
HEADERS = ChunkHeaderFormat(len(MEMBERS))
WIRE = FrameFormat(HEADERS.size)


@pytest.fixture
def root() -> Iterator[AllReduceGroup]:
    """Yield the group of m0, the root, in round 1; its peers listen and read nothing."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        roster = dict.fromkeys(MEMBERS, nobody.getsockname())
        group = AllReduceGroup(PLAN, SETTINGS, roster)
        group.begin(torch.zeros(ELEMENTS), 1.0)
        yield group
        group.close()


def nearly_right(draw: random.Random, payload: memoryview) -> Frame:
    """Return a frame from m1 to m0, with up to three random fields."""
    offset = draw.randrange(12) * 256
    header = ChunkHeader(Kind.PARTIAL, 1, 0, 3, 3, 1, ELEMENTS, offset, 1.0, 0b10)
    wild = {
        "kind": lambda: draw.choice(list(Kind)),
        "dtype": lambda: draw.randrange(256),
        "tree": lambda: draw.choice([0, 1, 65_535]),
        "epoch": lambda: draw.choice([0, 2, 3, 4, 2**32 - 1]),
        "successor": lambda: draw.randrange(2**32),
        "round": lambda: draw.choice([0, 1, 3, 2**32 - 1]),
        "elements": lambda: draw.choice([0, 1, ELEMENTS, 2**64 - 1]),
        "offset": lambda: draw.choice([0, 1, ELEMENTS, 2**63]),
        "contributors": lambda: draw.randrange(16),
        "scale": lambda: draw.choice([0.0, 1e300]),
    }
    wild_frame = {
        "length": lambda: draw.choice([0, 1, CHUNK, 2**32 - 1]),
        "table": lambda: draw.choice([0, 2, 3, 4, 2**32 - 1]),
        "route": lambda: draw.randrange(4),
        "left": lambda: draw.randrange(4),
    }
    fields = draw.sample(sorted({*wild, *wild_frame}), draw.randint(0, 3))
    header = header._replace(**{name: wild[name]() for name in fields if name in wild})
    frame = Frame(HEADERS.pack(header), min(CHUNK, 4 * (ELEMENTS - offset)), table=3)
    frame = frame._replace(**{name: wild_frame[name]() for name in fields if name in wild_frame})
    return frame.sealed(payload[: frame.length])


def test_ten_thousand_frames_are_taken_or_refused_in_bounded_memory(root: AllReduceGroup) -> None:
    """A received frame takes the memory of one chunk at most, whatever its head claims."""
    draw = random.Random(1)
    payload = memoryview(bytearray(CHUNK))
    refused = taken = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(FRAMES):
        head = bytearray(WIRE.pack(nearly_right(draw, payload)))
        if draw.random() < 0.3:  # flipped bits, with a checksum that fits them
            head[draw.randrange(len(head) - 4)] ^= 1 << draw.randrange(8)
            head[-4:] = struct.pack("<I", zlib.crc32(head[:-4]))
        try:
            frame = WIRE.unpack(memoryview(head))
            hello = Greeting("m1", draw.choice([0, 0, 1, 2]), 0, PLAN.epoch)
            receiver = root.receiver(hello)
            if frame.length > receiver.most_bytes:
                raise FrameError("too long, as a listener says")
            frame.verify(payload[: frame.length])
            dispatch(receiver, hello, Received("m1", frame, payload[: frame.length], frame.length, 0.0))
            taken += 1
        except FrameError:
            refused += 1
    assert refused > FRAMES / 2 and taken > 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
    assert set(root._rounds._rounds) == {1} and set(root.plans._plans) == {3}


def test_frames_over_a_socket_end_their_connection_alone(root: AllReduceGroup) -> None:
    """Frames are truncated, of a wrong length, or of no round: each time the next connection is accepted."""
    draw = random.Random(2)
    payload = bytearray(CHUNK)
    accepting = socket.create_server(("127.0.0.1", 0))
    listener = Listener(accepting, SETTINGS, root)
    try:
        for _ in range(200):
            with socket.create_connection(accepting.getsockname()) as connection:
                frame = nearly_right(draw, memoryview(payload))
                header = HEADERS.unpack(frame.header)._replace(epoch=99)
                frame = frame._replace(header=HEADERS.pack(header))
                whole = WIRE.pack(frame) + payload
                greeting = Greeting("m1", generation=PLAN.epoch)
                handshake.greet(connection, greeting, "m0", settings_of("m1"), time.monotonic() + PATIENCE_S)
                connection.settimeout(PATIENCE_S)
                with suppress(OSError):  # the connection may be closed before all is read
                    connection.sendall(whole[: draw.randrange(len(whole))] if draw.random() < 0.5 else whole)
                    connection.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    assert connection.recv(1) == b""
    finally:
        listener.close()
    assert set(root._rounds._rounds) == {1}
