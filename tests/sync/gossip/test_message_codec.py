"""Headers of messages' parts: the same after a trip, and refused when their weight makes no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync.errors import FrameError
from testbed.sync.gossip.message_codec import HEADER_BYTES, PartHeader

pytestmark = pytest.mark.pure

WORD = st.integers(0, 2**32 - 1)
LONG = st.integers(0, 2**64 - 1)


@given(st.builds(PartHeader, st.integers(0, 255), WORD, WORD, WORD, st.floats(0, 1e300), LONG, LONG))
def test_a_header_survives_the_trip(header: PartHeader) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES and PartHeader.unpack(packed) == header


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_must_be_finite(weight: float) -> None:
    with pytest.raises(FrameError) as caught:
        PartHeader.unpack(PartHeader(1, 0, 0, 0, weight, 0).pack())
    assert caught.value.field == "weight"
