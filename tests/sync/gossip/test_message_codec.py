"""Messages of peers: headers of their parts are the same after a trip, and any model fits into a message."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync.codecs import by_name
from testbed.sync.errors import FrameError
from testbed.sync.gossip.message_codec import COUNT, HEADER_BYTES, MessageCodec, PartHeader

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


@pytest.mark.parametrize("name", ["fp16", "bins4", "topk:0.9", "sparse"])
def test_a_whole_model_fits_into_a_message_whatever_its_values_are(name: str) -> None:
    codec, values = by_name(name), torch.arange(1.0, 1001.0)
    messages = MessageCodec(("a", "b"), len(values), codec)
    assert len(codec.encode(values)) + COUNT.itemsize <= messages.most_bytes


@pytest.mark.parametrize("name", ["int8", "topk:0.01"])
def test_a_model_whose_elements_a_codec_can_not_count_is_refused(name: str) -> None:
    MessageCodec(("a", "b"), 2**31 - 1, by_name(name))
    with pytest.raises(ValueError, match="fp16"):
        MessageCodec(("a", "b"), 2**31, by_name(name))
    MessageCodec(("a", "b"), 2**31, by_name("fp16"))
