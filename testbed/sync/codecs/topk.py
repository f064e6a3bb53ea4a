"""A codec that keeps the largest values, each with its place."""

from __future__ import annotations

import torch

from testbed.sync.codecs.codec import Codec

#: Places are 16-bit numbers within a part of this many values.
PART = 1 << 16
DEFAULT_SHARE = 0.01


class TopK(Codec):
    """Keeps the share of a chunk's values with the largest magnitude (at least one), as float32, and their places.

    A relay decodes, adds, and keeps the largest of the sum: gTop-k (Shi et al. 2019), so a chunk costs
    6 × share × elements bytes on every link, however many members lie below; sending unions would cost up to as many
    times more near the root. The values left out are far from negligible: without error feedback training does not
    converge. Values are sent late by about 1/share rounds.
    """

    name = "topk"
    code = 6

    def __init__(self, share: float = DEFAULT_SHARE) -> None:
        self._share = share

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values, then their places, in rising order of places."""
        kept = values.abs().topk(self._kept(len(values)), sorted=False).indices.sort().values
        places = kept.to(torch.int32 if len(values) > PART else torch.int16)  # 40,000 wraps; decode unwraps it
        return torch.cat([values[kept].view(torch.uint8), places.view(torch.uint8)])

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the values, zeros elsewhere. A place beyond the chunk's end counts as the last one."""
        width = _width(elements)
        kept = len(data) // width
        values = data[: 4 * kept].clone().view(torch.float32)
        if elements > PART:
            places = data[4 * kept :].clone().view(torch.int32).long()
        else:
            places = data[4 * kept :].clone().view(torch.int16).long() & (PART - 1)
        result = torch.zeros(elements)
        result[places.clamp_(0, elements - 1)] = values
        return result

    def fits(self, elements: int, length: int) -> bool:
        """Return whether the length is that of any number of values up to all: the sender chooses the share."""
        return length % _width(elements) == 0 and 0 < length <= elements * _width(elements)

    def size(self, elements: int) -> int:
        """Return six bytes for each value kept, or eight if the chunk has more than 65,536 elements."""
        return self._kept(elements) * _width(elements)

    def _kept(self, elements: int) -> int:
        return max(1, round(self._share * elements))


def _width(elements: int) -> int:
    return 8 if elements > PART else 6
