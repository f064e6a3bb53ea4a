"""Codecs of two or four bits a value: uniform bins over six standard deviations; a value becomes the mean of its bin.

They follow hivemind's 8-bit quantization by quantiles of a normal distribution; MuLoCo (arXiv 2505.23725) has 4 levels.

    2 bits, σ = root of the mean square of a block        -∞ ··· -1.5 σ ··· 0 ··· 1.5 σ ··· ∞
                                                          bin 0      1      2        3
"""

from __future__ import annotations

import torch
from torch.nn import functional

from testbed.sync.codecs import bits
from testbed.sync.codecs.codec import Codec

#: Values that share a table of means, which adds 1.6 % to two bits and 3.1 % to four.
BLOCK = 4096
#: The range of the bins in standard deviations. The bins at both ends also hold the values beyond.
RANGE = 6


class Bins(Codec):
    """`width` bits for each value and a table of 2^width means (float32) for each block of 4,096.

    The errors in a bin add up to 0, but for rounding, so a block's mean does not change. The error of a value in a bin
    between the ends is less than the bin's width, 6 σ / 2^width. Bytes: the tables, then the bins' numbers.
    """

    def __init__(self, name: str, code: int, width: int) -> None:
        self.name = name
        self.code = code
        self._width = width

    @classmethod
    def two(cls) -> Bins:
        """Return the codec with four bins, 1.5 σ wide: the sign, and whether a value is large."""
        return cls("bins2", 7, 2)

    @classmethod
    def four(cls) -> Bins:
        """Return the codec with sixteen bins, 0.375 σ wide."""
        return cls("bins4", 8, 4)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of the tables of means, then of each value's bin."""
        blocks = _blocks(len(values))
        padded = functional.pad(values, (0, blocks * BLOCK - len(values))).view(blocks, BLOCK)
        count = torch.full((blocks, 1), BLOCK)
        count[-1] = len(values) - (blocks - 1) * BLOCK
        chosen, means = binned(padded, count, self._width)
        packed = bits.pack(chosen.view(-1)[: len(values)], self._width)
        return torch.cat([means.view(-1).view(torch.uint8), packed])

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the mean of each value's bin."""
        blocks, tables = _blocks(elements), self._tables(elements)
        means = data[:tables].clone().view(torch.float32).view(blocks, -1)
        chosen = bits.unpack(data[tables:], self._width, elements)
        return means.gather(1, functional.pad(chosen, (0, blocks * BLOCK - elements)).view(blocks, BLOCK)).view(-1)[
            :elements
        ]

    def size(self, elements: int) -> int:
        """Return two or four bits for each value, and 16 or 64 bytes for each block."""
        return self._tables(elements) + bits.room(self._width, elements)

    def _tables(self, elements: int) -> int:
        return (4 << self._width) * _blocks(elements)


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
    here = torch.arange(values.shape[1]) < count
    sums = torch.zeros(len(values), bins, dtype=torch.float64).scatter_add_(1, chosen, values.double())
    held = torch.zeros(len(values), bins, dtype=torch.float64).scatter_add_(1, chosen, here.double())
    means = (sums / held.clamp_min(1)).float()
    means[~sigma.isfinite().view(-1)] = torch.nan
    return chosen.to(torch.uint8), means


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)
