"""Headers of chunks: the same after a trip, and refused when they make no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, Kind
from testbed.sync.errors import FrameError

pytestmark = pytest.mark.pure

HEADER = ChunkHeader(Kind.MEAN, 1, 2, 3, 4, 5, 1000, 64, 1.5, 0b101)


def test_contributors_that_are_no_members_are_refused() -> None:
    headers = ChunkHeaderFormat(5)
    assert headers.unpack(headers.pack(HEADER._replace(contributors=0b11111))).contributors == 0b11111
    with pytest.raises(FrameError) as caught:
        headers.unpack(headers.pack(HEADER._replace(contributors=0b100001)))
    assert (caught.value.rule, caught.value.given) == ("unknown-member", 0b100001)


@given(
    st.builds(
        ChunkHeader,
        kind=st.sampled_from(Kind),
        dtype=st.integers(0, 255),
        tree=st.integers(0, 2**16 - 1),
        epoch=st.integers(0, 2**32 - 1),
        successor=st.integers(0, 2**32 - 1),
        round=st.integers(0, 2**32 - 1),
        elements=st.integers(0, 2**64 - 1),
        offset=st.integers(0, 2**64 - 1),
        weight=st.floats(0, 1e300),
        contributors=st.integers(0, 2**300 - 1),
        scale=st.floats(0, 1e300),
        overlaps=st.booleans(),
    )
)
def test_a_header_survives_the_trip(header: ChunkHeader) -> None:
    headers = ChunkHeaderFormat(300)
    packed = headers.pack(header)
    assert len(packed) == headers.size
    assert headers.unpack(packed) == header


@pytest.mark.parametrize("field", ["weight", "scale"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_weights_and_scales_must_be_finite(field: str, value: float) -> None:
    headers = ChunkHeaderFormat(3)
    with pytest.raises(FrameError) as caught:
        headers.unpack(headers.pack(HEADER._replace(**{field: value})))
    assert caught.value.field == field


def test_another_kind_is_refused() -> None:
    headers = ChunkHeaderFormat(3)
    with pytest.raises(FrameError) as caught:
        headers.unpack(b"\x09" + headers.pack(HEADER)[1:])
    assert (caught.value.rule, caught.value.given) == ("unknown-kind", 9)
