"""Numbers of a few bits, packed into bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync.codecs import bits

pytestmark = pytest.mark.pure


@given(st.integers(0, 12), st.integers(0, 100), st.integers(0, 2**32))
def test_numbers_lie_in_bytes_the_lowest_bit_first(width: int, count: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 2**width, (count,), generator=draw)
    whole = sum(int(number) << place * width for place, number in enumerate(numbers))
    packed = bits.pack(numbers, width)
    assert packed.tolist() == list(whole.to_bytes(bits.room(width, count), "little"))
    assert torch.equal(bits.unpack(packed, width, count), numbers)
    assert torch.equal(bits.pack(numbers + (5 << width), width), packed)  # higher bits do not count
