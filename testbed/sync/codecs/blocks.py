"""Codecs that quantize values in blocks, each with a scale or a table of its own.

int8    linear block-wise 8-bit (Dettmers et al. 2022, section 2.1): a byte a value and a scale a block
bins    two or four bits a value: uniform bins over six standard deviations; a value becomes the mean of its bin

The bins follow hivemind's 8-bit quantization by quantiles of a normal distribution; MuLoCo (arXiv 2505.23725) has 4
levels:

    2 bits, σ = root of the mean square of a block        -∞ ··· -1.5 σ ··· 0 ··· 1.5 σ ··· ∞
                                                          bin 0      1      2        3
"""

from __future__ import annotations

import torch
from torch.nn import functional

from testbed.sync.codecs import bits
from testbed.sync.codecs.codec import Codec

#: Values that share a scale in int8: one outlier spoils the precision of its block. At 256 the scales add 1.6 %.
SCALE_BLOCK = 256
#: The largest code of int8. −128 stays unused, so that the codes are symmetric.
LEVELS = 127
#: Values that share a table of means, which adds 1.6 % to two bits and 3.1 % to four.
BLOCK = 4096
#: The range of the bins in standard deviations. The bins at both ends also hold the values beyond.
RANGE = 6


class Int8(Codec):
    """Divides each block of 256 values by a 127th of its largest magnitude, and rounds to whole codes.

    The error is at most half a step, 1/254 of that magnitude. Bytes: the scales as float32, then the codes.
    """

    name = "int8"
    code = 5

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of each block's scale, then of each value's nearest code."""
        padded = _in_blocks(values, SCALE_BLOCK)
        scales = padded.abs().amax(1).div_(LEVELS)
        # A block of zeros has no scale to divide by.
        codes = padded.div(scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)).round_()
        codes = codes.clamp_(-LEVELS, LEVELS).to(torch.int8).view(-1)[: len(values)]
        return torch.cat([scales.view(torch.uint8), codes.view(torch.uint8)])

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return each code times its block's scale."""
        end = 4 * -(-elements // SCALE_BLOCK)
        scales = data[:end].clone().view(torch.float32)
        codes = _in_blocks(data[end:].view(torch.int8), SCALE_BLOCK).to(torch.float32)
        return codes.mul_(scales.unsqueeze(1)).view(-1)[:elements]

    def size(self, elements: int) -> int:
        """Return a byte for each value and four for each block."""
        return elements + 4 * -(-elements // SCALE_BLOCK)


class Bins(Codec):
    """`width` bits for each value and a table of 2^width means (float32) for each block of 4,096.

    The errors in a bin add up to 0, but for rounding, so a block's mean does not change. The error of a value in a bin
    between the ends is less than the bin's width, 6 σ / 2^width: 1.5 σ with two bits, which are the sign and whether a
    value is large, and 0.375 σ with four. Bytes: the tables, then the bins' numbers.
    """

    def __init__(self, name: str, code: int, width: int) -> None:
        self.name = name
        self.code = code
        self._width = width

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of the tables of means, then of each value's bin."""
        padded = _in_blocks(values, BLOCK)
        count = torch.full((len(padded), 1), BLOCK, device="cpu")
        count[-1] = len(values) - (len(padded) - 1) * BLOCK
        chosen, means = binned(padded, count, self._width)
        packed = bits.pack(chosen.view(-1)[: len(values)], self._width)
        return torch.cat([means.view(-1).view(torch.uint8), packed])

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the mean of each value's bin."""
        tables = self._tables(elements)
        means = data[:tables].clone().view(torch.float32).view(-1, 2**self._width)
        chosen = _in_blocks(bits.unpack(data[tables:], self._width, elements), BLOCK)
        return means.gather(1, chosen).view(-1)[:elements]

    def size(self, elements: int) -> int:
        """Return two or four bits for each value, and 16 or 64 bytes for each block."""
        return self._tables(elements) + bits.room(self._width, elements)

    def _tables(self, elements: int) -> int:
        return (4 << self._width) * -(-elements // BLOCK)


def binned(values: torch.Tensor, count: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort each value into one of 2^`width` bins, and return the values' bins and the bins' means.

    Args:
        values: Blocks of values, (rows, n). Row i has `count[i]` values and then zeros.
        count: The number of values of each row, (rows, 1).
        width: The bits of a bin's number.

    Returns:
        Each value's bin (uint8, (rows, n)), and the bins' means (rows, 2^width). The means of a row with a value that
        is not finite are NaN.
    """
    bins = 2**width
    # In float64: squares of values above 1.8e19 are beyond float32.
    sigma = (values.double().square().sum(1, keepdim=True) / count).sqrt()
    step = (RANGE * sigma / bins).clamp_min(torch.finfo(torch.float32).tiny)
    chosen = torch.nan_to_num((values / step).floor_(), nan=0.0).add_(bins // 2).clamp_(0, bins - 1).long()
    here = torch.arange(values.shape[1], device="cpu") < count
    sums = torch.zeros(len(values), bins, dtype=torch.float64, device="cpu").scatter_add_(1, chosen, values.double())
    held = torch.zeros(len(values), bins, dtype=torch.float64, device="cpu").scatter_add_(1, chosen, here.double())
    means = (sums / held.clamp_min(1)).float()
    means[~sigma.isfinite().view(-1)] = torch.nan
    return chosen.to(torch.uint8), means


def _in_blocks(values: torch.Tensor, block: int) -> torch.Tensor:
    """Return flat values in rows of `block`, the last one filled up with zeros."""
    return functional.pad(values, (0, -len(values) % block)).view(-1, block)
