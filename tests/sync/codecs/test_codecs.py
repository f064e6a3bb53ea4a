"""Each codec by itself: how far off it may be, how long, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync.codecs import PLAIN, Codec, by_code, by_name
from testbed.sync.codecs.int8 import BLOCK

pytestmark = pytest.mark.unit

NAMES = ("fp32", "fp16", "bf16", "int8", "topk", "topk:0.25")

#: A chunk's values: of any size that training meets, and a few outliers.
chunks = st.builds(
    lambda seed, elements, scale, outliers: draw(seed, elements, scale, outliers),
    st.integers(0, 2**32),
    st.integers(1, 3000),
    st.floats(1e-6, 1e3),
    st.integers(0, 3),
)


def draw(seed: int, elements: int, scale: float, outliers: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=generator) * scale
    values[torch.randint(elements, (outliers,), generator=generator)] *= 50
    return values


def trip(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    data = codec.encode(values)
    assert data.dtype == torch.uint8 and len(data) == codec.size(len(values))
    assert codec.fits(len(values), len(data))
    return codec.decode(data, len(values))


@given(chunks)
def test_fp32_is_exact(values: torch.Tensor) -> None:
    assert torch.equal(trip(PLAIN, values), values)


@given(chunks)
def test_fp16_rounds_to_eleven_bits(values: torch.Tensor) -> None:
    error = (trip(by_name("fp16"), values) - values).abs()
    inside = values.abs() <= torch.finfo(torch.float16).max
    # Below the least normal value the step is that of the subnormal ones, 2^-24.
    assert (error <= values.abs() * 2**-11 + 2**-25)[inside].all()


@given(chunks)
def test_bf16_rounds_to_eight_bits(values: torch.Tensor) -> None:
    assert ((trip(by_name("bf16"), values) - values).abs() <= values.abs() * 2**-8).all()


def test_what_is_too_large_for_fp16_saturates() -> None:
    assert trip(by_name("fp16"), torch.tensor([1e6, -1e9, 3.0])).tolist() == [65504.0, -65504.0, 3.0]


@given(chunks)
def test_int8_errs_by_half_a_step_of_its_block(values: torch.Tensor) -> None:
    decoded = trip(by_name("int8"), values)
    for start in range(0, len(values), BLOCK):
        block, got = values[start : start + BLOCK], decoded[start : start + BLOCK]
        assert (got - block).abs().max() <= block.abs().max() / 127 * 0.5001


@given(chunks)
def test_topk_keeps_the_largest_exactly(values: torch.Tensor) -> None:
    decoded = trip(by_name("topk:0.25"), values)
    kept = decoded != 0
    assert torch.equal(decoded[kept], values[kept])
    if not kept.all():
        assert values[~kept].abs().max() <= values[kept].abs().min()
    assert kept.sum() == max(1, round(0.25 * len(values)))


@pytest.mark.parametrize("elements", [65_536, 65_537, 100_000])
def test_topk_finds_places_beyond_16_bits(elements: int) -> None:
    values = torch.zeros(elements)
    places = [0, 32_767, 32_768, 65_535, elements - 1]
    values[places] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert torch.equal(trip(by_name("topk:0.001"), values), values)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
def test_zeros_stay_zeros(name: str) -> None:
    assert not trip(by_name(name), torch.zeros(1000)).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_none_is_seen(name: str) -> None:
    values = torch.ones(1000)
    values[3] = float("nan")
    assert trip(by_name(name), values).isnan().any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("elements", [1, 2, 255, 257, 16_384])
def test_lengths_that_no_encoding_has_are_refused(name: str, elements: int) -> None:
    codec = by_name(name)
    assert by_code(codec.code) is not None
    for length in (0, codec.size(elements) + 1, 9 * elements + 4):
        assert not codec.fits(elements, length)


@given(st.integers(1, 2000), st.binary(min_size=1, max_size=12_000))
def test_any_bytes_that_fit_decode(elements: int, data: bytes) -> None:
    for name in NAMES:
        codec = by_name(name)
        if codec.fits(elements, len(data)):
            assert len(codec.decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), elements)) == elements


@pytest.mark.parametrize("name", ["int4", "topk:0", "topk:1", "topk:all", "int8:3", ""])
def test_what_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"no such codec|topk keeps a share"):
        by_name(name)
