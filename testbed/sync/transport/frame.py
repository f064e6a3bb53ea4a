"""The wire format between members: a greeting, then frames, each a head and a payload.

    greeting   magic  version  channel  stream  length of the name  generation  nonce  name    by who connects
    proofs     both ways, see handshake.py
    frame      magic  version  flags  left  route  table  length  pace  burst  checksum of the payload
               the channel's own header  CRC-32 of all before it  payload...
    taken      .                         back, for each frame on a channel for auxiliary routes

All little-endian. What the header says and what the payload is belongs to whoever uses the channel; the transport
checks that both arrive as they were sent. A head is read and checked before a byte of the payload is: what a receiver
sets aside for a connection is one payload of the length that it allows, whatever the head claims.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from testbed.sync.errors import FrameError
from testbed.sync.transport.checksum import checksum

MAGIC: Final = b"TBDS"
VERSION: Final = 8

NONCE_BYTES: Final = 16
_GREETING: Final = struct.Struct(f"<4sBBBBI{NONCE_BYTES}s")
#: What comes before the name.
GREETING_BYTES: Final = _GREETING.size
#: The answer to a greeting on a channel for auxiliary routes: who forwards will wait for what comes there. A member
#: that is leaving does not answer, and nothing is lost with it.
WELCOME: Final = b"+"
#: The answer to each frame there, once it came to the end of its route: only then another one may follow.
TAKEN: Final = b"."

#: The channel of frames to the peer itself. Channel n brings frames that n - 1 more members forward after the peer.
DIRECT: Final = 0
#: A channel that auxiliary routes leave free: none has so many hops. A connection on it asks for something instead of
#: bringing frames.
FETCH: Final = 255

#: A member's name is a host's name, and those end at 64 characters.
MAX_NAME_BYTES: Final = 64

_HEAD: Final = struct.Struct("<4sBBBxHIIIII")
_CRC: Final = struct.Struct("<I")

_FOLLOWS: Final = 1
#: `pace` and `burst` are what TCP allows, in KiB/s.
_KIB: Final = 1024
_MOST_PACE: Final = 2**32 - 1


class Frame(NamedTuple):
    """A frame's head: a channel's own `header`, and how many bytes of payload (`length`) with which checksum follow.

    Without a `checksum` it is not ready to be sent: `sealed` has one. A frame on an auxiliary route names it by its
    number in a `table` of routes (see RouteTable), from 1 on, and how many more members are `left` to forward it.

    A frame `follows` another on its connection if it waited while that one was sent. `allowed_bytes_s` is what TCP
    would let go by then, to the next KiB/s; 0 where the path holds it back, not TCP. It goes in bursts of
    `burst_bytes_s` where its window takes less than its pace.
    """

    header: bytes
    length: int
    checksum: int | None = None
    table: int = 0
    route: int = 0
    left: int = 0
    follows: bool = False
    allowed_bytes_s: int = 0
    burst_bytes_s: int = 0

    @property
    def channel(self) -> int:
        """The channel that the frame belongs on: as many members as are left, and the one that it comes to."""
        return self.left + 1 if self.route else DIRECT

    def sealed(self, payload: memoryview) -> Frame:
        """The frame with the checksum of its payload."""
        return self if self.checksum is not None else self._replace(checksum=checksum(payload))

    def verify(self, payload: memoryview) -> None:
        """Raise FrameError unless the payload is the one that the head was made for."""
        if checksum(payload) != self.checksum:
            raise FrameError("the checksum of a frame's payload is wrong")


class FrameFormat:
    """Packs and unpacks the heads of a channel whose own headers have `header_bytes`."""

    def __init__(self, header_bytes: int) -> None:
        self._header_bytes = header_bytes
        self.size: Final = _HEAD.size + header_bytes + _CRC.size

    def pack(self, frame: Frame) -> bytes:
        """The head of a frame that is sealed."""
        head = (
            _HEAD.pack(
                MAGIC,
                VERSION,
                _FOLLOWS if frame.follows else 0,
                frame.left,
                frame.route,
                frame.table,
                frame.length,
                _kib(frame.allowed_bytes_s),
                _kib(frame.burst_bytes_s),
                frame.checksum,
            )
            + frame.header
        )
        return head + _CRC.pack(zlib.crc32(head))

    def unpack(self, head: memoryview) -> Frame:
        """The frame of a head of `size` bytes; FrameError when it is none."""
        magic, version, flags, left, route, table, length, pace, burst, stated = _HEAD.unpack_from(head)
        if magic != MAGIC:
            raise FrameError(f"not a frame: it begins with {magic!r}")
        if version != VERSION:
            raise FrameError(f"frame version {version} is not {VERSION}")
        end = _HEAD.size + self._header_bytes
        if _CRC.unpack_from(head, end)[0] != zlib.crc32(head[:end]):
            raise FrameError("the checksum of a frame's head is wrong")
        return Frame(
            header=bytes(head[_HEAD.size : end]),
            length=length,
            checksum=stated,
            table=table,
            route=route,
            left=left,
            follows=bool(flags & _FOLLOWS),
            allowed_bytes_s=pace * _KIB,
            burst_bytes_s=burst * _KIB,
        )


def _kib(bytes_s: int) -> int:
    return min(-(-bytes_s // _KIB), _MOST_PACE)


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who connects, on which channel, and the how-manieth connection of that channel it is.

    Members come and go: the `generation` says among which of them the sender takes part (for all-reduce, the epoch of
    the generation's first plan; for gossip, the iteration in which the sender came).
    """

    member: str
    channel: int = DIRECT
    stream: int = 0
    generation: int = 0

    def pack(self, nonce: bytes) -> bytes:
        """What a member says first on a connection to a peer."""
        encoded = self.member.encode()
        if not 0 < len(encoded) <= MAX_NAME_BYTES:
            raise FrameError(
                f"the name {self.member!r} must have 1 to {MAX_NAME_BYTES} bytes", field="member", given=self.member
            )
        head = _GREETING.pack(MAGIC, VERSION, self.channel, self.stream, len(encoded), self.generation, nonce)
        return head + encoded

    @staticmethod
    def name_bytes(head: bytes) -> int:
        """How many bytes of name follow the `head` of a greeting; FrameError when it is none."""
        magic, version, _, _, length, _, _ = _GREETING.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise FrameError(f"not a greeting: {head[:5]!r}", rule="no-greeting")
        if not 0 < length <= MAX_NAME_BYTES:
            raise FrameError(f"a greeting with a name of {length} bytes")
        return int(length)

    @classmethod
    def unpack(cls, head: bytes, name: bytes) -> Greeting:
        """The greeting of a head that `name_bytes` took, and the name after it."""
        _, _, channel, stream, _, generation, _ = _GREETING.unpack(head)
        return cls(name.decode(errors="replace"), channel, stream, generation)
