"""Frames: unpacked as they were packed, and refused if any bit is wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync.errors import FrameError
from testbed.sync.transport.frame import GREETING_BYTES, NONCE_BYTES, Frame, FrameFormat, Greeting, checksum

pytestmark = pytest.mark.pure

PAYLOAD = memoryview(bytearray(range(256)) * 8)
HEADER = b"what is sent"
FRAME = Frame(HEADER, len(PAYLOAD), checksum(PAYLOAD))
WIRE = FrameFormat(len(HEADER))


@given(
    st.builds(
        Frame,
        header=st.binary(min_size=30, max_size=30),
        length=st.integers(0, 2**32 - 1),
        checksum=st.integers(0, 2**32 - 1),
        table=st.integers(0, 2**32 - 1),
        route=st.integers(0, 2**16 - 1),
        left=st.integers(0, 255),
        follows=st.booleans(),
        allowed_bytes_s=st.integers(0, 2**20).map(lambda kib: 1024 * kib),
        burst_bytes_s=st.integers(0, 2**20).map(lambda kib: 1024 * kib),
    )
)
def test_a_frame_survives_the_trip(frame: Frame) -> None:
    wire = FrameFormat(30)
    head = memoryview(wire.pack(frame))
    assert len(head) == wire.size
    assert wire.unpack(head) == frame


def test_what_tcp_allows_is_rounded_up_and_nothing_is_not_a_limit() -> None:
    def received(allowed: int) -> int:
        return WIRE.unpack(memoryview(WIRE.pack(FRAME._replace(allowed_bytes_s=allowed)))).allowed_bytes_s

    assert [received(0), received(1), received(1024), received(1025)] == [0, 1024, 1024, 2048]
    assert received(2**60) == 1024 * (2**32 - 1)


@given(st.integers(0, 2**32))
def test_any_flipped_bit_is_noticed(seed: int) -> None:
    draw = random.Random(seed)
    whole = bytearray(WIRE.pack(FRAME) + bytes(PAYLOAD))
    whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
    head, payload = memoryview(whole)[: WIRE.size], memoryview(whole)[WIRE.size :]
    with pytest.raises(FrameError):
        WIRE.unpack(head).verify(payload)


@given(st.binary(max_size=3000), st.integers(0, 2**32))
def test_a_checksum_notices_words_that_change_places(data: bytes, seed: int) -> None:
    """Words have 8 bytes, and rows 64 words; two words that change places within a column are not noticed."""
    draw = random.Random(seed)
    assert checksum(memoryview(bytearray(data))) == checksum(memoryview(bytearray(data)))
    if len(data) < 16:
        return
    one, other = draw.sample(range(len(data) // 8), 2)
    moved = bytearray(data)
    moved[8 * one : 8 * one + 8], moved[8 * other : 8 * other + 8] = data[8 * other :][:8], data[8 * one :][:8]
    if moved != data and (one - other) % 64:
        assert checksum(memoryview(moved)) != checksum(memoryview(bytearray(data)))


def test_greetings_need_a_name_and_a_version() -> None:
    said = Greeting("paris-w0", channel=2, stream=1, generation=7).pack(bytes(NONCE_BYTES))
    head, name = said[:GREETING_BYTES], said[GREETING_BYTES:]
    assert Greeting.name_bytes(head) == len("paris-w0")
    assert Greeting.unpack(head, name) == Greeting("paris-w0", 2, 1, 7)
    with pytest.raises(FrameError) as caught:
        Greeting.name_bytes(b"GET / HTTP/1.1\r\n"[:4] + head[4:])
    assert caught.value.rule == "no-greeting"
    with pytest.raises(FrameError) as caught:
        Greeting("x" * 65).pack(bytes(NONCE_BYTES))
    assert caught.value.field == "member"
