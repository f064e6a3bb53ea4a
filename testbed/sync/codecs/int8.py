"""A codec of one byte a value and a scale a block: linear block-wise 8-bit (Dettmers et al. 2022, section 2.1)."""

from __future__ import annotations

import torch
from torch.nn import functional

from testbed.sync.codecs.codec import Codec

#: Values that share a scale: one outlier spoils the precision of its block. At 256 the scales add 1.6 %.
BLOCK = 256
#: The largest code. −128 stays unused, so that the codes are symmetric.
LEVELS = 127


class Int8(Codec):
    """Divides each block of 256 values by a 127th of its largest magnitude, and rounds to whole codes.

    The error is at most half a step, 1/254 of that magnitude. Bytes: the scales as float32, then the codes.
    """

    name = "int8"
    code = 5

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of each block's scale, then of each value's nearest code."""
        blocks = _blocks(len(values))
        padded = functional.pad(values, (0, blocks * BLOCK - len(values))).view(blocks, BLOCK)
        scales = padded.abs().amax(1).div_(LEVELS)
        # A block of zeros has no scale to divide by.
        codes = padded.div(scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)).round_()
        codes = codes.clamp_(-LEVELS, LEVELS).to(torch.int8).view(-1)[: len(values)]
        return torch.cat([scales.view(torch.uint8), codes.view(torch.uint8)])

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return each code times its block's scale."""
        blocks = _blocks(elements)
        scales = data[: 4 * blocks].clone().view(torch.float32)
        codes = functional.pad(data[4 * blocks :].view(torch.int8), (0, blocks * BLOCK - elements))
        return codes.to(torch.float32).view(blocks, BLOCK).mul_(scales.unsqueeze(1)).view(-1)[:elements]

    def size(self, elements: int) -> int:
        """Return a byte for each value and four for each block."""
        return elements + 4 * _blocks(elements)


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)
