"""What a frame of an all-reduce says of the chunk that it carries."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from testbed.sync.errors import FrameError

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
