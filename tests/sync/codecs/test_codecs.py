"""Each codec alone: its largest error, its length, and the inputs that it refuses."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync import flat
from testbed.sync.codecs import PLAIN, Codec, Residual, by_code, by_name, rounded
from testbed.sync.codecs.blocks import BLOCK, RANGE, SCALE_BLOCK
from testbed.sync.codecs.codec import bytes_of

pytestmark = pytest.mark.pure

#: The codecs whose length depends on the number of elements alone.
NAMES = ("fp32", "fp16", "bf16", "int8", "topk", "topk:0.25", "bins2", "bins4")
ALL = (*NAMES, "sparse")

#: A chunk's values: of any magnitude in trainings, with a few outliers.
chunks = st.builds(
    lambda seed, elements, scale, outliers: draw(seed, elements, scale, outliers),
    st.integers(0, 2**32),
    st.integers(1, 9000),
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


@pytest.mark.parametrize("largest", [0.0, 1.0, 65_504.0, 65_505.0, 1e9, float("inf"), float("nan")])
def test_fp16_s_scale_is_the_least_with_which_no_value_saturates(largest: float) -> None:
    values = torch.tensor([1.0, -largest])
    scale = by_name("fp16").scale(values)
    assert scale == (1 if not 65_504 < largest < float("inf") else 2 ** math.ceil(math.log2(largest / 65_504)))
    if largest < float("inf"):
        assert torch.allclose(trip(by_name("fp16"), values / scale) * scale, values, rtol=2**-10, atol=scale * 2**-25)
    assert by_name("bf16").scale(values) == by_name("int8").scale(values) == 1


@pytest.mark.parametrize("name", NAMES)
def test_codecs_take_float32_on_the_host_whatever_pytorch_s_defaults_are(name: str) -> None:
    values, codec = torch.linspace(-1, 1, 5000, dtype=torch.float32), by_name(name)
    expected, residual = trip(codec, values), Residual()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        found = trip(codec, values)
        residual.open(3)
        room = flat.room([values])
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)
    assert residual.values is not None
    assert {(its.dtype, its.device.type) for its in (residual.values, room)} == {(torch.float32, "cpu")}


@given(chunks)
def test_int8_errs_by_half_a_step_of_its_block(values: torch.Tensor) -> None:
    decoded = trip(by_name("int8"), values)
    for start in range(0, len(values), SCALE_BLOCK):
        block, got = values[start : start + SCALE_BLOCK], decoded[start : start + SCALE_BLOCK]
        assert (got - block).abs().max() <= block.abs().max() / 127 * 0.5001


@given(chunks)
def test_topk_keeps_the_largest_exactly(values: torch.Tensor) -> None:
    decoded = trip(by_name("topk:0.25"), values)
    kept = decoded != 0
    assert torch.equal(decoded[kept], values[kept])
    if not kept.all():
        assert values[~kept].abs().max() <= values[kept].abs().min()
    assert kept.sum() == max(1, round(0.25 * len(values)))


@given(chunks, st.sampled_from([2, 4]))
def test_bins_stand_for_the_mean_of_what_they_hold(values: torch.Tensor, width: int) -> None:
    decoded = trip(by_name(f"bins{width}"), values)
    for start in range(0, len(values), BLOCK):
        block, got = values[start : start + BLOCK].double(), decoded[start : start + BLOCK].double()
        sigma = block.square().mean().sqrt()
        step = RANGE * sigma / 2**width
        assert len(got.unique()) <= 2**width
        for level in got.unique():
            torch.testing.assert_close(block[got == level].mean(), level, rtol=1e-6, atol=float(sigma) * 1e-6)
        inside = block.abs() < RANGE / 2 * sigma * (1 - 2**1 / 2**width)  # no bin that is open to one side
        assert ((got - block).abs()[inside] <= step * (1 + 1e-6)).all()
        # A bin's mean is nearer to what it holds, all in all, than 0 is.
        assert (got - block).square().sum() <= block.square().sum() * (1 + 1e-6)


def test_four_bits_lose_less_than_two() -> None:
    values = draw(1, 50_000, 1.0, 0)
    two, four = ((trip(by_name(name), values) - values).square().mean() for name in ("bins2", "bins4"))
    assert two < 0.2 and four < 0.02  # of a variance of 1


@given(chunks, st.floats(0, 1), st.sampled_from([None, 2, 40]))
def test_sparse_loses_nothing(values: torch.Tensor, share: float, levels: int | None) -> None:
    codec = by_name("sparse")
    if levels:
        values = (values / values.abs().max() * levels).round()
    values = values * (torch.rand(len(values), generator=torch.Generator().manual_seed(len(values))) < share)
    data = codec.encode(values)
    assert data.dtype == torch.uint8 and codec.fits(len(values), len(data))
    assert torch.equal(codec.decode(data, len(values)), values)


@given(st.integers(0, 2**32), st.integers(256, 20_000), st.integers(1, 200))
def test_sparse_places_take_the_bits_that_elias_and_fano_say(seed: int, elements: int, kept: int) -> None:
    values = torch.zeros(elements)
    places = torch.randperm(elements, generator=torch.Generator().manual_seed(seed))[:kept]
    values[places] = 1.0
    bits = len(places) * (2 + math.log2(elements / len(places)))
    # 8 bytes of counts, 4 of the one value there is, and up to a byte not filled in each of two lists.
    assert len(by_name("sparse").encode(values)) <= 8 + 4 + bits / 8 + 2


def test_values_of_two_bits_at_one_place_of_128_take_about_eleven_bits_each() -> None:
    """32 of 4,096, as SparseLoCo sends them: 9 bits for a place and 2 for its value, and 24 bytes a chunk."""
    values = torch.zeros(16_384)
    places = torch.randperm(len(values), generator=torch.Generator().manual_seed(1))[:128]
    values[places] = torch.tensor([-3.0, -1.0, 1.0, 3.0]).repeat(32)
    assert len(by_name("sparse").encode(values)) <= 24 + 128 * 11 / 8 + 2


@pytest.mark.parametrize("elements", [65_536, 65_537, 100_000])
def test_topk_finds_places_beyond_16_bits(elements: int) -> None:
    values = torch.zeros(elements)
    places = [0, 32_767, 32_768, 65_535, elements - 1]
    values[places] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert torch.equal(trip(by_name("topk:0.001"), values), values)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "bins2", "bins4"])
def test_zeros_stay_zeros(name: str) -> None:
    assert not trip(by_name(name), torch.zeros(1000)).any()


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_rounded_to_nothing(name: str) -> None:
    """Where the parts of a model are more than its elements, some are empty."""
    assert not len(rounded(by_name(name), torch.empty(0)))


def test_a_residual_keeps_the_errors_of_two_rounds_at_a_time() -> None:
    residual = Residual()
    residual.open(3)
    for _ in range(2):
        assert not residual.take(0, 3).any()
    residual.store(0, torch.tensor([1.0, 2.0, math.inf]))
    residual.store(1, torch.tensor([0.5, 1.0]))
    assert residual.take(0, 3).tolist() == [1.0, 2.5, 1.0]
    assert not residual.take(0, 3).any()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("what", ["nan", "inf", "-inf"])
def test_a_value_that_is_not_finite_is_seen(name: str, what: str) -> None:
    values = torch.ones(1000)
    values[3] = float(what)
    codec = by_name(name)
    assert not codec.decode(codec.encode(values), len(values)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("elements", [1, 2, 255, 257, 16_384])
def test_lengths_that_no_encoding_has_are_refused(name: str, elements: int) -> None:
    codec = by_name(name)
    assert by_code(codec.code) is not None
    for length in (0, codec.size(elements) + 1, 9 * elements + 4):
        assert not codec.fits(elements, length)


@given(st.integers(1, 2000), st.binary(min_size=1, max_size=12_000))
def test_any_bytes_that_fit_decode(elements: int, data: bytes) -> None:
    for name in ALL:
        codec = by_name(name)
        if codec.fits(elements, len(data)):
            assert len(codec.decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), elements)) == elements


@pytest.mark.parametrize("name", ["int3", "topk:0", "topk:1", "topk:all", "int8:3", ""])
def test_what_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(ValueError):
        by_name(name)


def test_a_view_is_the_tensor_s_memory_and_keeps_it() -> None:
    values = torch.tensor([1.0, 2.0])
    alive = weakref.ref(values)
    part = bytes_of(values)[4:]
    values.mul_(2)
    del values
    assert alive() is not None
    assert torch.frombuffer(bytearray(part), dtype=torch.float32).tolist() == [4.0]
    del part
    assert alive() is None
