"""The wire format between members: a greeting, then frames, each a head and a chunk's elements.

    greeting   magic  version  length of the name  secret (digest)  name            once, by who connects
    frame      magic  version  kind  dtype  tree  epoch  successor  round  elements  offset  length
               weight  contributors (a bit a member)  CRC-32 (of all before it, then of the elements)  elements...

All little-endian. A frame says enough to be checked against the plan before a byte of its elements is taken:
what a receiver sets aside for a connection is one chunk, whatever the head claims.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from testbed.sync.errors import FrameError

MAGIC: Final = b"TBDS"
VERSION: Final = 1

GREETING: Final = struct.Struct("<4sBB16s")
#: A member's name is a host's name, and those end at 64 characters.
MAX_NAME_BYTES: Final = 64

_HEAD: Final = "<4sBBBxHIIIQQId"


class Kind(IntEnum):
    """Which way a chunk travels."""

    PARTIAL = 0
    MEAN = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame's head. `elements` counts the whole tensor, `offset` elements into it, `length` bytes.

    `successor` is the epoch that all `contributors` are ready to go by next, `weight` the sum of theirs.
    """

    kind: Kind
    dtype: int
    tree: int
    epoch: int
    successor: int
    round: int
    elements: int
    offset: int
    length: int
    weight: float
    contributors: int


class FrameFormat:
    """Packs and unpacks heads among `members` members; the bitmap is as long as they need."""

    def __init__(self, members: int) -> None:
        self._bitmap_bytes = (members + 7) // 8
        self._head = struct.Struct(f"{_HEAD}{self._bitmap_bytes}s")
        self.size: Final = self._head.size + 4

    def pack(self, frame: Frame, payload: memoryview) -> bytes:
        """The head of a frame, checksum included."""
        head = self._head.pack(
            MAGIC,
            VERSION,
            frame.kind,
            frame.dtype,
            frame.tree,
            frame.epoch,
            frame.successor,
            frame.round,
            frame.elements,
            frame.offset,
            frame.length,
            frame.weight,
            frame.contributors.to_bytes(self._bitmap_bytes, "little"),
        )
        return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little")

    def unpack(self, head: memoryview) -> Frame:
        """The frame of a head of `size` bytes; FrameError when it is none."""
        (magic, version, kind, dtype, tree, epoch, successor, number, elements, offset, length, weight, bitmap) = (
            self._head.unpack_from(head)
        )
        if magic != MAGIC:
            raise FrameError(f"not a frame: it begins with {magic!r}")
        if version != VERSION:
            raise FrameError(f"frame version {version} is not {VERSION}")
        if kind not in (Kind.PARTIAL, Kind.MEAN):
            raise FrameError(f"no such kind of frame: {kind}")
        if not 0 <= weight < float("inf"):
            raise FrameError(f"weight {weight} is not a finite number of at least 0")
        contributors = int.from_bytes(bitmap, "little")
        return Frame(Kind(kind), dtype, tree, epoch, successor, number, elements, offset, length, weight, contributors)

    def verify(self, head: memoryview, payload: memoryview) -> None:
        """Raise FrameError unless the checksum at the head's end holds over head and elements."""
        stated = int.from_bytes(head[-4:], "little")
        if zlib.crc32(payload, zlib.crc32(head[:-4])) != stated:
            raise FrameError("a frame's checksum is wrong")


def greeting(name: str, secret: str) -> bytes:
    """What a member says first on a connection to a peer."""
    encoded = name.encode()
    if not 0 < len(encoded) <= MAX_NAME_BYTES:
        raise FrameError(f"the name {name!r} must have 1 to {MAX_NAME_BYTES} bytes")
    return GREETING.pack(MAGIC, VERSION, len(encoded), _digest(secret)) + encoded


def name_length(head: bytes | memoryview, secret: str) -> int:
    """How many bytes of name follow a greeting's fixed part; FrameError when it is not from one of us."""
    magic, version, length, digest = GREETING.unpack(head)
    if magic != MAGIC or version != VERSION:
        raise FrameError(f"not a greeting: {bytes(head[:5])!r}")
    if digest != _digest(secret):
        raise FrameError("a greeting with another run's secret")
    if not 0 < length <= MAX_NAME_BYTES:
        raise FrameError(f"a greeting with a name of {length} bytes")
    return int(length)


def _digest(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode(), digest_size=16).digest()
