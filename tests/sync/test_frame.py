"""Frames: the same after a trip, and refused when a bit of them is wrong."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync.errors import FrameError
from testbed.sync.frame import GREETING, Frame, FrameFormat, Kind, greeting, name_length

pytestmark = pytest.mark.unit

FRAME = Frame(Kind.MEAN, 1, 2, 3, 4, 5, 1000, 64, 16, 1.5, 0b101)
PAYLOAD = memoryview(bytes(range(16)))


@given(
    st.builds(
        Frame,
        kind=st.sampled_from(Kind),
        dtype=st.integers(0, 255),
        tree=st.integers(0, 2**16 - 1),
        epoch=st.integers(0, 2**32 - 1),
        successor=st.integers(0, 2**32 - 1),
        round=st.integers(0, 2**32 - 1),
        elements=st.integers(0, 2**64 - 1),
        offset=st.integers(0, 2**64 - 1),
        length=st.integers(0, 2**32 - 1),
        weight=st.floats(0, 1e300),
        contributors=st.integers(0, 2**300 - 1),
    )
)
def test_a_frame_survives_the_trip(frame: Frame) -> None:
    wire = FrameFormat(300)
    head = memoryview(wire.pack(frame, PAYLOAD))
    assert len(head) == wire.size
    assert wire.unpack(head) == frame
    wire.verify(head, PAYLOAD)


@given(st.integers(0, 2**32))
def test_any_flipped_bit_is_noticed(seed: int) -> None:
    wire, draw = FrameFormat(3), random.Random(seed)
    whole = bytearray(wire.pack(FRAME, PAYLOAD) + bytes(PAYLOAD))
    whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
    head, payload = memoryview(whole)[: wire.size], memoryview(whole)[wire.size :]
    with pytest.raises(FrameError):
        wire.unpack(head)
        wire.verify(head, payload)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_must_be_finite(weight: float) -> None:
    wire = FrameFormat(3)
    with pytest.raises(FrameError, match="weight"):
        wire.unpack(memoryview(wire.pack(dataclasses.replace(FRAME, weight=weight), PAYLOAD)))


def test_greetings_need_the_secret_and_a_name() -> None:
    said = greeting("paris-w0", "secret")
    head = said[: GREETING.size]
    assert name_length(head, "secret") == len("paris-w0") and said[GREETING.size :] == b"paris-w0"
    with pytest.raises(FrameError, match="secret"):
        name_length(head, "another")
    with pytest.raises(FrameError, match="not a greeting"):
        name_length(b"GET / HTTP/1.1\r\n"[:4] + head[4:], "secret")
    with pytest.raises(FrameError, match="1 to 64 bytes"):
        greeting("x" * 65, "secret")
