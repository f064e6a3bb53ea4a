"""Whole numbers of a few bits each, packed into bytes."""

from __future__ import annotations

from functools import cache

import torch

#: Widths at which no number lies across two bytes. They are packed by shifts of whole tensors and unpacked by a table
#: of all bytes, which takes a tenth of the time of single bits to pack, and a third to unpack.
WHOLE = (1, 2, 4, 8)


def pack(numbers: torch.Tensor, width: int) -> torch.Tensor:
    """Pack numbers into bytes.

    Args:
        numbers: The numbers, any integer type, flat.
        width: The bits of each number, the lowest bit first. Higher bits are ignored.

    Returns:
        The bytes, uint8. The last byte may be partly unused; at width 0 there are no bytes.
    """
    if width in WHOLE:
        share = 8 // width
        padded = torch.zeros(share * -(-len(numbers) // share), dtype=torch.uint8, device="cpu")
        padded[: len(numbers)] = numbers & 2**width - 1  # higher bits are ignored
        first, *others = padded.view(-1, share).unbind(1)
        packed = first.clone()
        for place, part in enumerate(others, 1):
            packed |= part << place * width
        return packed
    at = torch.arange(width, dtype=numbers.dtype, device="cpu")
    return pack_bits((numbers.unsqueeze(1) >> at).bitwise_and_(1).to(torch.uint8).view(-1))


def unpack(data: torch.Tensor, width: int, count: int) -> torch.Tensor:
    """Return the first `count` numbers (int64) of bytes from `pack`."""
    if width in WHOLE:
        return _parts(width)[data[: room(width, count)].int()].view(-1)[:count].long()
    bits = unpack_bits(data[: room(width, count)])[: width * count]
    return (bits.view(count, width).long() << torch.arange(width, device="cpu")).sum(1)


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """Pack zeros and ones (uint8, flat), eight to a byte."""
    whole = torch.zeros(8 * -(-len(bits) // 8), dtype=torch.uint8, device="cpu")
    whole[: len(bits)] = bits
    return (whole.view(-1, 8) << torch.arange(8, dtype=torch.uint8, device="cpu")).sum(1, dtype=torch.uint8)


def unpack_bits(data: torch.Tensor) -> torch.Tensor:
    """Return the bits of bytes (uint8, flat)."""
    return (data.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device="cpu")).bitwise_and_(1).view(-1)


def room(width: int, count: int) -> int:
    """Return the bytes that `count` numbers of `width` bits take."""
    return -(-width * count // 8)


@cache
def _parts(width: int) -> torch.Tensor:
    """Return the numbers in each of the 256 bytes (uint8, (256, 8 / width))."""
    numbers, places = torch.arange(256, device="cpu"), torch.arange(0, 8, width, device="cpu")
    return (numbers.unsqueeze(1) >> places).bitwise_and_(2**width - 1).to(torch.uint8)
