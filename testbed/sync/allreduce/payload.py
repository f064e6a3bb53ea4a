"""What a frame carries: a chunk's elements in the tensor's own type, or what a codec made of them.

A chunk's `dtype` says which: numbers of DTYPES as they are, from 3 to 15 codecs, all of float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from testbed.sync.allreduce.chunk import LocalValues, Part
from testbed.sync.allreduce.header import Kind
from testbed.sync.allreduce.layout import Chunk
from testbed.sync.allreduce.sums import CODES, DTYPES, Sums
from testbed.sync.codecs import PLAIN, Codec, Residual, by_code
from testbed.sync.codecs.codec import bytes_of


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


class Encoded(NamedTuple):
    """A chunk as it travels: its code, its bytes, and what its elements are to be multiplied with."""

    code: int
    data: memoryview
    scale: float


class Encoder:
    """Encodes what `sums` holds of a round. With a `residual` chunks go through codecs, and it keeps what those left
    out."""

    def __init__(self, sums: Sums, residual: Residual | None) -> None:
        self._sums = sums
        self._residual = residual

    def owed(self, chunk: Chunk) -> torch.Tensor | None:
        """What earlier rounds left out of a chunk, which is to count in this one."""
        return None if self._residual is None else self._residual.pay(chunk.start, chunk.stop)

    def encode(self, chunk: Chunk, kind: Kind, part: Part, codec: Codec, unsummed: LocalValues | None) -> Encoded:
        """A chunk made of `part`, for as long as its sum stays. Where it is this member's own values alone
        (`unsummed`), those are what travels."""
        if self._residual is not None and codec.size(len(chunk)) < PLAIN.size(len(chunk)):
            return Encoded(codec.code, self._through(codec, chunk, kind, part), 1.0)
        code = CODES[self._sums.dtype]
        if unsummed is not None:
            return Encoded(code, bytes_of(unsummed.values), unsummed.weight)
        scale = 1.0
        if kind is Kind.PARTIAL and not self._sums.wide and part.weight > 0:
            # The mean of those below: their sum could be beyond float16, which ends at 65,504.
            scale = part.weight
            self._sums.view(chunk.start, chunk.stop).div_(scale)
        self._sums.settle(chunk.start, chunk.stop)
        return Encoded(code, self._sums.place(chunk.start, chunk.stop), scale)

    def _through(self, codec: Codec, chunk: Chunk, kind: Kind, part: Part) -> memoryview:
        """What a codec makes of a chunk, which becomes what peers will decode."""
        assert self._residual is not None
        values = self._sums.view(chunk.start, chunk.stop)
        coded = codec.encode(values)
        data = memoryview(bytearray(len(coded)))
        torch.frombuffer(data, dtype=torch.uint8).copy_(coded)
        decoded = codec.decode(coded, len(values))
        scale = part.weight if kind is Kind.MEAN else 1.0  # residuals are in units of sums
        self._residual.owe(chunk.start, (values - decoded).mul_(scale))
        values.copy_(decoded)
        return data
