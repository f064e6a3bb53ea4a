"""Codecs that send some of a chunk's values, each with its place: the largest ones, or those that are not zero.

The latter loses nothing, also for chunks with few different values:

    the number of values that are not zero (4 bytes), the number of different ones among them (4 bytes)
    a table of the different values (float32), and the number in it of each value that is not zero
    the places in rising order, by Elias and Fano: the low bits of each place unchanged; for the high bits of each
    place, as many 0 as they exceed those of the place before, and then a 1

An Elias-Fano list (Elias 1974, Fano 1971) of n places among u takes 2 + log2(u/n) bits a place, where no code of any
kind takes fewer than about 1.44 + log2(u/n): for 32 of 4,096 it is 9 bits against 8.4, and 12 as plain numbers. It
is packed and unpacked without a loop over places.
"""

from __future__ import annotations

import torch

from testbed.sync.codecs import bits
from testbed.sync.codecs.codec import Codec

#: Places are 16-bit numbers within a part of this many values.
PART = 1 << 16
DEFAULT_SHARE = 0.01


class TopK(Codec):
    """Keeps the share of a chunk's values with the largest magnitude (at least one), as float32, and their places.

    A relay decodes, adds, and keeps the largest of the sum: gTop-k (Shi et al. 2019), so a chunk costs
    6 × share × elements bytes on every link, however many members lie below; sending unions would cost up to that many
    times as much near the root. The values left out are far from negligible: without error feedback training does not
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
        entry = _entry(elements)
        kept = len(data) // entry
        values = data[: 4 * kept].clone().view(torch.float32)
        if elements > PART:
            places = data[4 * kept :].clone().view(torch.int32).long()
        else:
            places = data[4 * kept :].clone().view(torch.int16).long() & (PART - 1)
        result = torch.zeros(elements, dtype=torch.float32, device="cpu")
        result[places.clamp_(0, elements - 1)] = values
        return result

    def fits(self, elements: int, length: int) -> bool:
        """Return whether the length is that of any number of values up to all: the sender chooses the share."""
        return length % _entry(elements) == 0 and 0 < length <= elements * _entry(elements)

    def size(self, elements: int) -> int:
        """Return six bytes for each value kept, or eight if the chunk has more than 65,536 elements."""
        return self._kept(elements) * _entry(elements)

    def _kept(self, elements: int) -> int:
        return max(1, round(self._share * elements))


def _entry(elements: int) -> int:
    """Return the bytes of a value and its place."""
    return 8 if elements > PART else 6


#: Bytes of the two counts.
HEAD = 8
#: Plans assume, before values are known, that one value in 100 is not zero, and has two bits.
TYPICAL = 100


class Sparse(Codec):
    """Takes few bytes if values are zero or alike, and never more than eight beyond float32's own.

    It is for schemes that set most values to zero themselves. Relays add the decoded values and send the union of their
    places, with all bits of the sums, so members' sums are as exact as float32's in any tree. The values of one member
    have few different ones (with two bits, four for each of the model's tensors). Sums of several members have more; if
    a table would take more bytes than it saves, values are sent unchanged.
    """

    name = "sparse"
    code = 9

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values that are not zero, or all values where that takes fewer bytes. A zero's sign is lost."""
        places = values.nonzero().view(-1)
        some = self._encoded(values[places], places, len(values))
        if len(some) < HEAD + 4 * len(values) and len(places) < len(values):
            return some
        return self._encoded(values, None, len(values))

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the values, zeros elsewhere. A place or a number out of range counts as the last one."""
        count, distinct = (int(number) for number in data[:HEAD].clone().view(torch.int32))
        count = min(max(count, 0), elements)
        distinct = min(max(distinct, 0), count)
        low = _low(count, elements)
        lengths = [4 * (distinct or count), bits.room(_width(distinct), count)]
        if count < elements:
            lengths += [bits.room(low, count), bits.room(1, _high(count, low, elements))]
        whole = torch.zeros(sum(lengths), dtype=torch.uint8, device="cpu")
        given = data[HEAD : HEAD + len(whole)]
        whole[: len(given)] = given
        table, numbers, *places = torch.split(whole, lengths)
        values: torch.Tensor = table.view(torch.float32)
        if distinct:
            values = values[bits.unpack(numbers, _width(distinct), count).clamp_(max=distinct - 1)]
        if not places:
            return values.contiguous()
        rising = bits.unpack_bits(places[1]).nonzero().view(-1)[:count]
        rising = rising - torch.arange(len(rising), device="cpu") << low
        result = torch.zeros(elements, dtype=torch.float32, device="cpu")
        at = (rising + bits.unpack(places[0], low, count)[: len(rising)]).clamp_(max=elements - 1)
        result[at] = values[: len(rising)]
        return result

    def fits(self, elements: int, length: int) -> bool:
        """Return whether a payload of `length` bytes may hold `elements` values, of which any number may be zero."""
        return HEAD <= length <= self.most(elements)

    def most(self, elements: int) -> int:
        """Return the bytes if all values are sent unchanged."""
        return HEAD + 4 * elements

    def size(self, elements: int) -> int:
        """Return the bytes if one value in a hundred is not zero with two bits; the real size depends on them."""
        count = -(-elements // TYPICAL)
        low = _low(count, elements)
        places = bits.room(low, count) + bits.room(1, _high(count, low, elements))
        return HEAD + 16 + bits.room(2, count) + places

    def _encoded(self, kept: torch.Tensor, places: torch.Tensor | None, elements: int) -> torch.Tensor:
        """Return the bytes of the values `kept` at `places`; None for all places."""
        by_bits = kept.view(torch.int32)  # a NaN differs from itself
        table, numbers = torch.unique(by_bits, return_inverse=True)
        width = _width(len(table))
        distinct = len(table) if 4 * len(table) + bits.room(width, len(kept)) < 4 * len(kept) else 0
        head = torch.tensor([len(kept), distinct], dtype=torch.int32, device="cpu")
        parts = [head.view(torch.uint8)]
        if distinct:
            parts += [table.view(torch.uint8), bits.pack(numbers, width)]
        else:
            parts += [kept.contiguous().view(torch.uint8)]
        if places is not None:
            low = _low(len(kept), elements)
            rises = torch.zeros(_high(len(kept), low, elements), dtype=torch.uint8, device="cpu")
            rises[(places >> low) + torch.arange(len(places), device="cpu")] = 1
            parts += [bits.pack(places, low), bits.pack_bits(rises)]
        return torch.cat(parts)


def _width(distinct: int) -> int:
    """Return the bits of a number in a table."""
    return max(distinct - 1, 0).bit_length()


def _low(count: int, elements: int) -> int:
    """Return how many low bits of each place are written unchanged, for `count` places among `elements`."""
    return max((elements // count).bit_length() - 1, 0) if count else 0


def _high(count: int, low: int, elements: int) -> int:
    """Return how many bits the high parts of all places take together."""
    return count + ((elements - 1) >> low) + 1 if count else 0
