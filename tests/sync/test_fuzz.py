"""Frames that are nearly right, from a peer that knows the secret: each ends a connection, none harms a round."""

from __future__ import annotations

import random
import resource
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from testbed.plan import Plan, Route
from testbed.sync.allreduce.group import Exchange
from testbed.sync.allreduce.round import Delivery
from testbed.sync.errors import FrameError
from testbed.sync.transport.frame import Frame, FrameFormat, Greeting, Kind, verify
from testbed.sync.transport.listener import Listener
from testbed.sync.transport.sender import Way
from tests.sync.plans import names, star

pytestmark = pytest.mark.unit

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


@pytest.fixture
def root() -> Iterator[Exchange]:
    """m0, the root, in round 1; its peers listen and read nothing."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        roster = dict.fromkeys(MEMBERS, nobody.getsockname())
        exchange = Exchange(PLAN, Way("m0", "secret", 0.5), roster)
        exchange.begin(torch.zeros(ELEMENTS), 1.0, 1.0)
        yield exchange
        exchange.close()


def nearly_right(draw: random.Random, payload: memoryview) -> Frame:
    """A frame of m1's for m0, with up to three fields that may be anything."""
    offset = draw.randrange(12) * 256
    frame = Frame(
        Kind.PARTIAL, 1, 0, 3, 3, 1, ELEMENTS, offset, min(CHUNK, 4 * (ELEMENTS - offset)), 1.0, 0b10, scale=1.0
    )
    wild = {
        "kind": lambda: draw.choice(list(Kind)),
        "dtype": lambda: draw.randrange(256),
        "tree": lambda: draw.choice([0, 1, 65_535]),
        "epoch": lambda: draw.choice([0, 2, 3, 4, 2**32 - 1]),
        "successor": lambda: draw.randrange(2**32),
        "round": lambda: draw.choice([0, 1, 3, 2**32 - 1]),
        "elements": lambda: draw.choice([0, 1, ELEMENTS, 2**64 - 1]),
        "offset": lambda: draw.choice([0, 1, ELEMENTS, 2**63]),
        "length": lambda: draw.choice([0, 1, CHUNK, 2**32 - 1]),
        "contributors": lambda: draw.randrange(16),
        "route": lambda: draw.randrange(4),
        "left": lambda: draw.randrange(4),
        "scale": lambda: draw.choice([0.0, 1e300]),
    }
    fields = draw.sample(sorted(wild), draw.randint(0, 3))
    return frame._replace(**{name: wild[name]() for name in fields}).sealed(payload)


def test_ten_thousand_frames_are_taken_or_refused_in_bounded_memory(root: Exchange) -> None:
    """What `admit` lets in is received into a chunk's room at most, whatever the head claims."""
    draw, wire = random.Random(1), FrameFormat(len(MEMBERS))
    payload = memoryview(bytearray(CHUNK))
    refused = taken = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(FRAMES):
        head = bytearray(wire.pack(nearly_right(draw, payload)))
        if draw.random() < 0.3:  # bits that flip, with a checksum that says they did not
            head[draw.randrange(len(head) - 4)] ^= 1 << draw.randrange(8)
            head[-4:] = struct.pack("<I", zlib.crc32(head[:-4]))
        try:
            frame = wire.unpack(memoryview(head))
            delivery: Delivery = root.admit("m1", draw.choice([0, 0, 1, 2]), frame)
            assert frame.length <= CHUNK
            verify(frame, payload[: frame.length])
            if delivery.into is not None:
                assert len(delivery.into) == frame.length
            delivery.take(payload[: frame.length])
            taken += 1
        except FrameError:
            refused += 1
    assert refused > FRAMES / 2 and taken > 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
    assert set(root._rounds) == {1} and set(root._plans) == {3}


class Door:
    """Everything is for one exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def receiver(self, hello: Greeting) -> Exchange:
        return self._exchange

    def serve(self, connection: socket.socket) -> None:
        raise FrameError("nobody asks")


def test_frames_over_a_socket_end_their_connection_alone(root: Exchange) -> None:
    """Truncated, lying about their length, or of no round: each time the next connection is heard."""
    draw, wire = random.Random(2), FrameFormat(len(MEMBERS))
    payload = bytearray(CHUNK)
    accepting = socket.create_server(("127.0.0.1", 0))
    listener = Listener(accepting, "secret", Door(root))
    try:
        for _ in range(200):
            with socket.create_connection(accepting.getsockname()) as connection:
                frame = nearly_right(draw, memoryview(payload))._replace(epoch=99)
                whole = Greeting("m1").pack("secret") + wire.pack(frame) + payload
                connection.settimeout(10)
                with suppress(OSError):  # it may be closed before all of it is read
                    connection.sendall(whole[: draw.randrange(len(whole))] if draw.random() < 0.5 else whole)
                    connection.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    assert connection.recv(1) == b""
    finally:
        listener.close()
    assert set(root._rounds) == {1}
