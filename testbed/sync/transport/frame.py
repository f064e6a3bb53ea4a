"""The wire format between members: a greeting, then frames, each a head and a chunk's elements.

    greeting   magic  version  lane  stream  length of the name  era  secret (digest)  name     once, by who connects
    frame      magic  version  kind  dtype  left  flags  tree  route  epoch  successor  round  length  elements  offset
               weight  scale  pace  burst  contributors (a bit a member)  checksum of the elements
               CRC-32 of all before it  elements...
    taken      .                                        back, for each frame in a lane for auxiliary routes

All little-endian. A frame says enough to be checked against the plan before a byte of its elements is taken:
what a receiver sets aside for a connection is one chunk, whatever the head claims.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from testbed.sync.errors import FrameError
from testbed.sync.transport.checksum import checksum

MAGIC: Final = b"TBDS"
VERSION: Final = 6

GREETING: Final = struct.Struct("<4sBBBBI16s")
#: The answer to a greeting in a lane for auxiliary routes: who forwards will wait for what comes there. A member
#: that is leaving does not answer, and nothing is lost with it.
WELCOME: Final = b"+"
#: The answer to each frame there, once it came to the end of its route: only then another one may follow.
TAKEN: Final = b"."

#: Lanes that auxiliary routes leave free: none has so many hops. A connection in the first asks for something instead
#: of bringing frames (see fetch.py); in the other come probes.
FETCH_LANE: Final = 255
PROBE_LANE: Final = 254

#: A member's name is a host's name, and those end at 64 characters.
MAX_NAME_BYTES: Final = 64

_HEAD: Final = "<4sBBBBBHHIIIIQQddII"
_CRC: Final = struct.Struct("<I")


#: Flags.
_FOLLOWS, _OVERLAPS = 1, 2
#: `pace` and `burst` are what TCP allows, in KiB/s.
_KIB, _MOST_PACE = 1024, 2**32 - 1


class Kind(IntEnum):
    """Which way a chunk travels; a probe's frame is of no round (see probe.py), a message's of no all-reduce (see
    gossip/message_codec.py)."""

    PARTIAL = 0
    MEAN = 1
    PROBE = 2
    MESSAGE = 3


class Frame(NamedTuple):
    """A frame's head. `elements` counts the whole tensor, `offset` elements into it, `length` bytes.

    The sum (for a mean: the mean) is `scale` times what the frame carries; `weight` is the sum of the weights of
    `contributors`, and `successor` the epoch that they all are ready to go by next. A frame on an auxiliary route
    names it by its number in the plan, from 1 on, and how many more members are `left` to forward it. Without a
    `checksum` it is not ready to be sent: `sealed` has one.

    Some contributor `overlaps` rounds (see Exchange). A frame `follows` another on its connection if it waited while
    that one was sent. `allowed_bytes_s` is what TCP would let go by then, to the next KiB/s; 0 where the path holds it
    back, not TCP. It goes in bursts of `burst_bytes_s` where its window takes less than its pace.
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
    checksum: int | None = None
    scale: float = 1.0
    route: int = 0
    left: int = 0
    follows: bool = False
    overlaps: bool = False
    allowed_bytes_s: int = 0
    burst_bytes_s: int = 0

    def sealed(self, payload: memoryview) -> Frame:
        """The frame with the checksum of its elements."""
        return self if self.checksum is not None else self._replace(checksum=checksum(payload))


class FrameFormat:
    """Packs and unpacks heads among `members` members; the bitmap is as long as they need."""

    def __init__(self, members: int) -> None:
        self._bitmap_bytes = (members + 7) // 8
        self._head = struct.Struct(f"{_HEAD}{self._bitmap_bytes}sI")
        self.size: Final = self._head.size + _CRC.size

    def pack(self, frame: Frame) -> bytes:
        """The head of a frame."""
        head = self._head.pack(
            MAGIC,
            VERSION,
            frame.kind,
            frame.dtype,
            frame.left,
            (_FOLLOWS if frame.follows else 0) | (_OVERLAPS if frame.overlaps else 0),
            frame.tree,
            frame.route,
            frame.epoch,
            frame.successor,
            frame.round,
            frame.length,
            frame.elements,
            frame.offset,
            frame.weight,
            frame.scale,
            _kib(frame.allowed_bytes_s),
            _kib(frame.burst_bytes_s),
            frame.contributors.to_bytes(self._bitmap_bytes, "little"),
            frame.checksum,
        )
        return head + _CRC.pack(zlib.crc32(head))

    def unpack(self, head: memoryview) -> Frame:
        """The frame of a head of `size` bytes; FrameError when it is none."""
        (magic, version, kind, dtype, left, flags, tree, route, epoch, successor, number, length, elements, offset) = (
            fields := self._head.unpack_from(head)
        )[:14]
        weight, scale, pace, burst, bitmap, stated = fields[14:]
        if magic != MAGIC:
            raise FrameError(f"not a frame: it begins with {magic!r}")
        if version != VERSION:
            raise FrameError(f"frame version {version} is not {VERSION}")
        if _CRC.unpack_from(head, self._head.size)[0] != zlib.crc32(head[: self._head.size]):
            raise FrameError("the checksum of a frame's head is wrong")
        if kind not in tuple(Kind):
            raise FrameError(f"no such kind of frame: {kind}")
        if not (0 <= weight < float("inf") and 0 <= scale < float("inf")):
            raise FrameError(f"weight {weight} and scale {scale} must be finite numbers of at least 0")
        return Frame(
            kind=Kind(kind),
            dtype=dtype,
            tree=tree,
            epoch=epoch,
            successor=successor,
            round=number,
            elements=elements,
            offset=offset,
            length=length,
            weight=weight,
            contributors=int.from_bytes(bitmap, "little"),
            checksum=stated,
            scale=scale,
            route=route,
            left=left,
            follows=bool(flags & _FOLLOWS),
            overlaps=bool(flags & _OVERLAPS),
            allowed_bytes_s=pace * _KIB,
            burst_bytes_s=burst * _KIB,
        )


def _kib(bytes_s: int) -> int:
    return min(-(-bytes_s // _KIB), _MOST_PACE)


def verify(frame: Frame, payload: memoryview) -> None:
    """Raise FrameError unless the elements are those that the head was made for."""
    if checksum(payload) != frame.checksum:
        raise FrameError("the checksum of a frame's elements is wrong")


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who connects, in which lane (see Outbox), and the how-manieth connection of that lane it is.

    Members come and go: the `era` is the epoch of the first plan among those that are there (see Eras).
    """

    member: str
    lane: int = 0
    stream: int = 0
    era: int = 0

    def pack(self, secret: str) -> bytes:
        """What a member says first on a connection to a peer."""
        encoded = self.member.encode()
        if not 0 < len(encoded) <= MAX_NAME_BYTES:
            raise FrameError(f"the name {self.member!r} must have 1 to {MAX_NAME_BYTES} bytes")
        head = GREETING.pack(MAGIC, VERSION, self.lane, self.stream, len(encoded), self.era, _digest(secret))
        return head + encoded


def name_length(head: bytes | memoryview, secret: str) -> int:
    """How many bytes of name follow a greeting's fixed part; FrameError when it is not from one of us."""
    magic, version, _, _, length, _, digest = GREETING.unpack(head)
    if magic != MAGIC or version != VERSION:
        raise FrameError(f"not a greeting: {bytes(head[:5])!r}")
    if digest != _digest(secret):
        raise FrameError("a greeting with another run's secret")
    if not 0 < length <= MAX_NAME_BYTES:
        raise FrameError(f"a greeting with a name of {length} bytes")
    return int(length)


def greeted(head: bytes | memoryview, name: bytes | memoryview) -> Greeting:
    """The greeting of a fixed part that `name_length` took and the name after it."""
    _, _, lane, stream, _, era, _ = GREETING.unpack(head)
    return Greeting(bytes(name).decode(errors="replace"), lane, stream, era)


def _digest(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode(), digest_size=16).digest()
