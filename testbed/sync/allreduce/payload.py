"""What a frame carries: a chunk's elements in the tensor's own type, or what a codec made of them.

A frame's `dtype` says which: 1 and 2 are float32 and float64 as they are, higher numbers codecs, all of float32.
"""

from __future__ import annotations

import torch

from testbed.sync.buffers import DTYPES
from testbed.sync.codecs import Codec, by_code


def element_type(code: int) -> torch.dtype | None:
    """The type of the tensor that a frame's chunk is of; None when there is no such code."""
    return DTYPES.get(code) or (torch.float32 if by_code(code) else None)


def fits(code: int, elements: int, length: int) -> bool:
    """Whether a chunk of `elements` elements may have become `length` bytes."""
    if code in DTYPES:
        return length == elements * DTYPES[code].itemsize
    codec = by_code(code)
    return codec is not None and codec.fits(elements, length)


def decode(code: int, payload: memoryview, elements: int) -> torch.Tensor:
    """The elements of a payload that `fits`; those that came as they are share its memory."""
    if code in DTYPES:
        return torch.frombuffer(payload, dtype=DTYPES[code])
    codec = by_code(code)
    assert codec is not None
    return codec.decode(torch.frombuffer(payload, dtype=torch.uint8), elements)


def encode(codec: Codec, values: torch.Tensor) -> tuple[memoryview, torch.Tensor]:
    """The bytes that a codec makes of a chunk, and what they will be decoded to."""
    data = codec.encode(values)
    room = memoryview(bytearray(len(data)))
    torch.frombuffer(room, dtype=torch.uint8).copy_(data)
    return room, codec.decode(data, len(values))
