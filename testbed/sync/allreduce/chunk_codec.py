"""What a frame of an all-reduce says of the chunk that it carries.

The memory of rounds: what is summed up, and what becomes of it on the wire.

What a frame carries: a chunk's elements in the tensor's own type, or what a codec made of them.

A chunk's `dtype` says which: numbers of DTYPES as they are, from 3 to 15 codecs, all of float32.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

import torch

from testbed.sync.allreduce.chunk import LocalValues, Part
from testbed.sync.allreduce.role import Chunk
from testbed.sync.codecs import PLAIN, Codec, Residual, by_code
from testbed.sync.codecs.codec import bytes_of
from testbed.sync.errors import FrameError
from testbed.sync.transport import Scratch

_HEADER: Final = "<BBBxHIIIQQdd"
_OVERLAPS: Final = 1


class Kind(IntEnum):
    """Which way a chunk travels: up a tree, or down."""

    PARTIAL = 0
    MEAN = 1


class ChunkHeader(NamedTuple):
    """A chunk that begins `offset` elements into a tensor of `elements`, as `dtype` says (see payload.py).

    The sum (for a mean: the mean) is `scale` times what the frame carries; `weight` is the sum of the weights of
    `contributors`, a bit for each member, and `successor` the epoch that they all are ready to go by next. Some
    contributor `overlaps` rounds (see AllReduceGroup).
    """

    kind: Kind
    dtype: int
    tree: int
    epoch: int
    successor: int
    round: int
    elements: int
    offset: int
    weight: float
    contributors: int
    scale: float = 1.0
    overlaps: bool = False


class ChunkHeaderFormat:
    """Packs and unpacks headers among `members` members; the bitmap is as long as they need."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._bitmap_bytes = (members + 7) // 8
        self._struct = struct.Struct(f"{_HEADER}{self._bitmap_bytes}s")
        self.size: Final = self._struct.size

    def pack(self, header: ChunkHeader) -> bytes:
        """A header as it travels."""
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
        """The header that arrived, of `size` bytes; FrameError when it is none."""
        kind, dtype, flags, tree, epoch, successor, number, elements, offset, weight, scale, bitmap = (
            self._struct.unpack(packed)
        )
        if kind not in tuple(Kind):
            raise FrameError(f"no such kind of chunk: {kind}", rule="unknown-kind", given=kind)
        if not (0 <= weight < float("inf") and 0 <= scale < float("inf")):
            raise FrameError(
                f"weight {weight} and scale {scale} must be finite numbers of at least 0",
                field="weight" if not 0 <= weight < float("inf") else "scale",
            )
        contributors = int.from_bytes(bitmap, "little")
        if contributors >> self._members:
            raise FrameError(
                f"contributors {contributors:#b}, where there are {self._members} members",
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


#: Element types that travel as they are, by their code on the wire. Codes from 3 to 15 are the codecs'.
DTYPES: dict[int, torch.dtype] = {1: torch.float32, 2: torch.float64, 16: torch.float16, 17: torch.bfloat16}
CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in DTYPES.items()}


class Sums:
    """Room for the sums (of type `summed`) of elements of type `dtype`, and for what becomes of them on the wire.

    16-bit types are summed in float32: 8 bits of mantissa lose a ninth summand altogether. A chunk's `place` is
    where its elements stand as they travel, in their own type; it takes the room of its sums, or half of it.
    """

    def __init__(self, elements: int, dtype: torch.dtype, scratch: Scratch) -> None:
        self.elements = elements
        self.dtype = dtype
        self.wide = dtype.itemsize >= torch.float32.itemsize
        self.summed = dtype if self.wide else torch.float32
        self._bytes = scratch.room(elements * self.summed.itemsize)
        self._sums = torch.frombuffer(self._bytes, dtype=self.summed)
        self._placed = self._sums if self.wide else self._sums.view(dtype)

    def view(self, start: int, stop: int) -> torch.Tensor:
        """The sums of the elements [start, stop)."""
        return self._sums[start:stop]

    def placed(self, start: int, stop: int) -> torch.Tensor:
        """The elements [start, stop) in their own type, where they stand once `settle` was called or they came."""
        first = start if self.wide else 2 * start
        return self._placed[first : first + stop - start]

    def place(self, start: int, stop: int) -> memoryview:
        """The bytes of `placed`."""
        first = start * self._sums.element_size()
        return self._bytes[first : first + (stop - start) * self.dtype.itemsize]

    def keep(self, start: int, stop: int, elements: torch.Tensor) -> memoryview:
        """Have elements stand at [start, stop) as they came, to be sent on."""
        self.placed(start, stop).copy_(elements)
        return self.place(start, stop)

    def finalize(self, start: int, stop: int) -> None:
        """Turn the sums of [start, stop) into elements of their own type."""
        if not self.wide:
            self.placed(start, stop).copy_(self.view(start, stop).to(self.dtype))


class SumsPool:
    """Room for the sums of rounds; kept, since zeroing new memory costs as much as a copy."""

    def __init__(self) -> None:
        self._rooms: list[Scratch] = []
        self._users: list[int] = []
        self._sums: list[Sums | None] = []

    def take(self, round_number: int, free: Callable[[int], bool], elements: int, dtype: torch.dtype) -> Sums:
        """The room of a round; `free` says whether an older round needs its own no more."""
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
        self._sums.finalize(chunk.start, chunk.stop)
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
