"""Chunks on the wire and in memory: the header of a chunk's frame, its payload, and the buffers of sums.

A payload holds a chunk's elements in the tensor's own type, or as a codec encodes them. The header's `dtype` tells
which: a key of DTYPES for elements of that type, 3 to 15 for a codec of float32.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

import torch

from testbed.sync.allreduce.chunk import LocalValues, Part
from testbed.sync.allreduce.role import Chunk
from testbed.sync.buffers import Scratch
from testbed.sync.codecs import PLAIN, Codec, Residual, by_code
from testbed.sync.codecs.codec import bytes_of
from testbed.sync.errors import FrameError

_HEADER: Final = "<BBBxHIIIQQdd"
_OVERLAPS: Final = 1


class Kind(IntEnum):
    """The content of a chunk: a partial sum on its way up a tree, or a mean on its way down."""

    PARTIAL = 0
    MEAN = 1


class ChunkHeader(NamedTuple):
    """The header of a chunk's frame."""

    kind: Kind
    #: The encoding of the payload: a key of DTYPES, or a codec's code.
    dtype: int
    #: The number of the chunk's tree in its group.
    tree: int
    #: The epoch of the plan that the round uses.
    epoch: int
    #: The epoch that all contributors are ready to use in the next round.
    successor: int
    round: int
    #: The number of elements of the whole tensor.
    elements: int
    #: The chunk's first element in the tensor.
    offset: int
    #: The sum of the contributors' weights.
    weight: float
    #: A bitmap of the members whose updates the chunk holds.
    contributors: int
    #: The partial sum, or the mean, is `scale` times the payload.
    scale: float = 1.0
    #: True if some contributor overlaps rounds, see AllReduceGroup.
    overlaps: bool = False


class ChunkHeaderFormat:
    """Packs and unpacks the headers of a group of `members` members, whose number sets the length of the bitmap."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._bitmap_bytes = (members + 7) // 8
        self._struct = struct.Struct(f"{_HEADER}{self._bitmap_bytes}s")
        self.size: Final = self._struct.size

    def pack(self, header: ChunkHeader) -> bytes:
        """Return the bytes of a header, `size` of them."""
        return self._struct.pack(
            header.kind,
            header.dtype,
            _OVERLAPS if header.overlaps else 0,
            header.tree,
            header.epoch,
            header.successor,
            header.round,
            header.elements,
            header.offset,
            header.weight,
            header.scale,
            header.contributors.to_bytes(self._bitmap_bytes, "little"),
        )

    def unpack(self, packed: bytes) -> ChunkHeader:
        """Return the header in `size` bytes.

        Raises:
            FrameError: A field is out of range.
        """
        kind, dtype, flags, tree, epoch, successor, number, elements, offset, weight, scale, bitmap = (
            self._struct.unpack(packed)
        )
        if kind not in tuple(Kind):
            raise FrameError(f"unknown kind of chunk: {kind}", rule="unknown-kind", given=kind)
        if not (0 <= weight < float("inf") and 0 <= scale < float("inf")):
            raise FrameError(
                f"weight {weight} and scale {scale} must be finite numbers of at least 0",
                field="weight" if not 0 <= weight < float("inf") else "scale",
            )
        contributors = int.from_bytes(bitmap, "little")
        if contributors >> self._members:
            raise FrameError(
                f"contributors {contributors:#b} in a group of {self._members} members",
                rule="unknown-member",
                given=contributors,
            )
        return ChunkHeader(
            kind=Kind(kind),
            dtype=dtype,
            tree=tree,
            epoch=epoch,
            successor=successor,
            round=number,
            elements=elements,
            offset=offset,
            weight=weight,
            contributors=contributors,
            scale=scale,
            overlaps=bool(flags & _OVERLAPS),
        )


#: The types of elements that are sent unchanged, by their code on the wire. Codes 3 to 15 are those of codecs.
DTYPES: dict[int, torch.dtype] = {1: torch.float32, 2: torch.float64, 16: torch.float16, 17: torch.bfloat16}
CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in DTYPES.items()}


class Sums:
    """The buffer of a round's sums. Results replace the sums in it, in the tensor's own type, before they are sent.

    16-bit types are summed in float32: with 8 bits of mantissa a ninth summand would be lost completely. Their results
    take the first half of their sums' memory.

    Attributes:
        wide: True if sums have the tensor's own type.
    """

    def __init__(self, elements: int, dtype: torch.dtype, scratch: Scratch) -> None:
        self.elements = elements
        self.dtype = dtype
        self.wide = dtype.itemsize >= torch.float32.itemsize
        summed = dtype if self.wide else torch.float32
        self._bytes = scratch.room(elements * summed.itemsize)
        self._sums = torch.frombuffer(self._bytes, dtype=summed)
        self._results = self._sums if self.wide else self._sums.view(dtype)

    def view(self, start: int, stop: int) -> torch.Tensor:
        """Return the sums of the elements [start, stop), a view."""
        return self._sums[start:stop]

    def result(self, start: int, stop: int) -> torch.Tensor:
        """Return the results of the elements [start, stop) as a view, after `finalize` or `store` has filled them."""
        first = start if self.wide else 2 * start
        return self._results[first : first + stop - start]

    def result_bytes(self, start: int, stop: int) -> memoryview:
        """Return the bytes of `result`."""
        first = start * self._sums.element_size()
        return self._bytes[first : first + (stop - start) * self.dtype.itemsize]

    def store(self, start: int, stop: int, elements: torch.Tensor) -> memoryview:
        """Store received results of the elements [start, stop). Returns their bytes, to be forwarded."""
        self.result(start, stop).copy_(elements)
        return self.result_bytes(start, stop)

    def finalize(self, start: int, stop: int) -> None:
        """Convert the sums of the elements [start, stop) to the tensor's own type."""
        if not self.wide:
            self.result(start, stop).copy_(self.view(start, stop).to(self.dtype))


class SumsPool:
    """The buffers of rounds' sums. They are used again, because zeroing new memory costs as much as a copy."""

    def __init__(self) -> None:
        self._rooms: list[Scratch] = []
        self._users: list[int] = []
        self._sums: list[Sums | None] = []

    def take(self, round_number: int, free: Callable[[int], bool], elements: int, dtype: torch.dtype) -> Sums:
        """Return a buffer for a round. `free` returns whether a given older round no longer needs its buffer."""
        room = next((i for i, user in enumerate(self._users) if free(user)), len(self._rooms))
        if room == len(self._rooms):
            self._rooms.append(Scratch())
            self._users.append(round_number)
            self._sums.append(None)
        self._users[room] = round_number
        sums = self._sums[room]
        if sums is None or (sums.elements, sums.dtype) != (elements, dtype):
            sums = self._sums[room] = Sums(elements, dtype, self._rooms[room])
        return sums


def element_type(code: int) -> torch.dtype | None:
    """Return the type of the tensor that a chunk with this code belongs to; None for an unknown code."""
    return DTYPES.get(code) or (torch.float32 if by_code(code) else None)


def fits(code: int, elements: int, length: int) -> bool:
    """Return whether a payload of `length` bytes may hold `elements` elements."""
    if code in DTYPES:
        return length == elements * DTYPES[code].itemsize
    codec = by_code(code)
    return codec is not None and codec.fits(elements, length)


def decode(code: int, payload: memoryview, elements: int) -> torch.Tensor:
    """Return the elements of a payload that `fits`. Without a codec they share the payload's memory."""
    if code in DTYPES:
        return torch.frombuffer(payload, dtype=DTYPES[code])
    codec = by_code(code)
    assert codec is not None
    return codec.decode(torch.frombuffer(payload, dtype=torch.uint8), elements)


class Encoded(NamedTuple):
    """A chunk's payload as it is sent, and the two fields of its header that receivers need to decode it."""

    #: See ChunkHeader.dtype.
    code: int
    data: memoryview
    #: See ChunkHeader.scale.
    scale: float


class Encoder:
    """Encodes the chunks of a round.

    Args:
        residual: The residual that keeps the codecs' errors; None sends all chunks without codecs.
    """

    def __init__(self, sums: Sums, residual: Residual | None) -> None:
        self._sums = sums
        self._residual = residual

    def take_residual(self, chunk: Chunk) -> torch.Tensor | None:
        """Return the residual of earlier rounds for a chunk, and clear it; None without a residual."""
        return None if self._residual is None else self._residual.take(chunk.start, chunk.stop)

    def encode(self, chunk: Chunk, kind: Kind, part: Part, codec: Codec, unsummed: LocalValues | None) -> Encoded:
        """Return a chunk's payload. It is valid while the round's sums are.

        Args:
            chunk: The chunk.
            kind: A partial sum or a mean.
            part: The updates that the chunk holds.
            codec: The codec of the links that the chunk takes.
            unsummed: This member's own values if the chunk holds nothing else; they are sent themselves.
        """
        if self._residual is not None and codec.size(len(chunk)) < PLAIN.size(len(chunk)):
            values = self._sums.view(chunk.start, chunk.stop)
            scale = codec.scale(values) if kind is Kind.PARTIAL else 1.0
            coded = codec.encode(values if scale == 1 else values / scale)
            if len(coded) < PLAIN.size(len(chunk)):  # the length of `sparse` depends on the values
                data = self._keep_error(codec, coded, scale, self._residual, chunk, kind, part)
                return Encoded(codec.code, data, scale)
        code = CODES[self._sums.dtype]
        if unsummed is not None:
            return Encoded(code, bytes_of(unsummed.values), unsummed.weight)
        scale = 1.0
        if kind is Kind.PARTIAL and not self._sums.wide and part.weight > 0:
            # Send the mean of the members below: their sum could exceed float16's largest number, 65,504.
            scale = part.weight
            self._sums.view(chunk.start, chunk.stop).div_(scale)
        self._sums.finalize(chunk.start, chunk.stop)
        return Encoded(code, self._sums.result_bytes(chunk.start, chunk.stop), scale)

    def _keep_error(
        self, codec: Codec, coded: torch.Tensor, scale: float, residual: Residual, chunk: Chunk, kind: Kind, part: Part
    ) -> memoryview:
        """Keep the error of an encoded chunk as its residual, and replace the sums by the values that peers decode.

        Peers multiply the decoded values by `scale`.

        Returns:
            The encoded bytes.
        """
        data = memoryview(bytearray(len(coded)))
        torch.frombuffer(data, dtype=torch.uint8).copy_(coded)
        values = self._sums.view(chunk.start, chunk.stop)
        decoded = codec.decode(coded, len(values)) * scale
        weight = part.weight if kind is Kind.MEAN else 1.0  # residuals are in units of sums
        residual.store(chunk.start, (values - decoded).mul_(weight))
        values.copy_(decoded)
        return data
