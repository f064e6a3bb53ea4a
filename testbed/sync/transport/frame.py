"""The wire format between members: a greeting, then frames, each a head and a payload.

    greeting   magic  version  channel  stream  length of the name  generation  nonce  name    from the connecting side
    proofs     both ways, see handshake.py
    frame      magic  version  flags  left  route  table  length  pace  burst  checksum of the payload
               the channel's own header  CRC-32 of all before it  payload...
    taken      .                         back, for each frame on a channel for auxiliary routes

All numbers are little-endian. The channel's user defines its header and payload; the transport checks that both arrive
as they were sent. A receiver checks the head before it reads the payload, so it sets aside memory for one payload of
the length that it allows, whatever the head claims.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from testbed.sync.errors import FrameError

MAGIC: Final = b"TBDS"
VERSION: Final = 9

NONCE_BYTES: Final = 16
_GREETING: Final = struct.Struct(f"<4sBBBBI{NONCE_BYTES}s")
#: The length of a greeting without the name.
GREETING_BYTES: Final = _GREETING.size
#: The answer to a greeting on a channel for auxiliary routes: the forwarding member will wait for frames there. A
#: member that is leaving does not answer, so no frame is lost with it.
WELCOME: Final = b"+"
#: The answer to each frame on such a channel once it has reached the end of its route; only then may another follow.
TAKEN: Final = b"."

#: The channel of frames to the peer itself. Frames on channel n are forwarded by n - 1 more members after the peer.
DIRECT: Final = 0
#: A channel that auxiliary routes leave free, because no route has 254 members between its ends. A connection on it
#: requests data instead of bringing frames.
FETCH: Final = 255

#: A member's name is a host name, which has at most 64 characters.
MAX_NAME_BYTES: Final = 64

_HEAD: Final = struct.Struct("<4sBBBxHIIIII")
_CRC: Final = struct.Struct("<I")

_FOLLOWS: Final = 1
#: The unit of a head's `pace` and `burst`, in bytes/s.
_KIB: Final = 1024
_MOST_PACE: Final = 2**32 - 1

_SUMS: Final = struct.Struct("<64q")
_ROW_BYTES: Final = _SUMS.size


def checksum(data: memoryview) -> int:
    """Return a checksum of 32 bits of `data` (contiguous bytes), at a tenth of the cost of CRC-32.

    The bytes are laid in rows of 64 words of 64 bits. Each column is summed, and CRC-32 is taken of the 64 sums and of
    the bytes after the last whole row:

        w0  w1  ... w63
        w64 w65 ... w127
        ...
        ---------------- +  modulo 2^64
        s0  s1  ... s63  rest  -> CRC-32

    A flipped bit changes a sum, and so does a word that is lost or moved to another column. The checksum catches
    faults of memory and network cards, not an adversary. PyTorch sums columns at 15 GB/s a core and without Python's
    lock; zlib's CRC-32 runs at 2 GB/s, which was a third of the time of a round over loopback.
    """
    rows = len(data) // _ROW_BYTES
    if not rows:
        return zlib.crc32(data)
    import torch  # here, because the simulator reads constants of the transport and does not load PyTorch

    whole = rows * _ROW_BYTES
    words = torch.frombuffer(data[:whole], dtype=torch.uint8).view(rows, _ROW_BYTES).view(torch.int64)
    sums = words.sum(0, dtype=torch.int64)
    return zlib.crc32(data[whole:], zlib.crc32(_SUMS.pack(*sums.tolist())))


class Frame(NamedTuple):
    """The head of a frame, which the payload follows."""

    #: The channel's own header.
    header: bytes
    #: Bytes of payload.
    length: int
    #: The payload's checksum, or None until `sealed`; a frame without one can't be sent.
    checksum: int | None = None
    #: The number of a table of auxiliary routes, see RouteTable.
    table: int = 0
    #: The number of an auxiliary route in the table, from 1 on; 0 for a frame to the peer itself.
    route: int = 0
    #: Members left to forward the frame after the peer.
    left: int = 0
    #: True if the frame waited while the one before it on the connection was sent, and left right behind it.
    follows: bool = False
    #: The rate that TCP allows when the frame is sent, rounded up to KiB/s; 0 where the path is the limit, not TCP.
    allowed_bytes_s: int = 0
    #: The rate of TCP's bursts, where its window allows less than its pace.
    burst_bytes_s: int = 0

    @property
    def channel(self) -> int:
        """The channel that the frame belongs on: the number of members left to forward it, plus the peer."""
        return self.left + 1 if self.route else DIRECT

    def sealed(self, payload: memoryview) -> Frame:
        """Return the frame with the checksum of its payload."""
        return self if self.checksum is not None else self._replace(checksum=checksum(payload))

    def verify(self, payload: memoryview) -> None:
        """Check a received payload against the checksum in the frame's head.

        Raises:
            FrameError: The payload's checksum differs from the head's.
        """
        if checksum(payload) != self.checksum:
            raise FrameError("the checksum of a frame's payload is wrong")


class FrameFormat:
    """Packs and unpacks the heads of a channel whose own headers have `header_bytes` bytes."""

    def __init__(self, header_bytes: int) -> None:
        self._header_bytes = header_bytes
        self.size: Final = _HEAD.size + header_bytes + _CRC.size

    def pack(self, frame: Frame) -> bytes:
        """Return the head of a sealed frame, `size` bytes."""
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
        """Return the frame of a head of `size` bytes.

        Raises:
            FrameError: The bytes are not a head of this version, or were damaged.
        """
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
    """The first message on a connection: it identifies the member that connects, and the connection."""

    #: The name of the member that connects.
    member: str
    channel: int = DIRECT
    #: The number of the connection among those of its channel.
    stream: int = 0
    #: The sender's membership: for all-reduce, the epoch of the generation's first plan; for gossip, the iteration in
    #: which the sender joined.
    generation: int = 0

    def pack(self, nonce: bytes) -> bytes:
        """Return the greeting's bytes.

        Raises:
            FrameError: The member's name is empty, or longer than MAX_NAME_BYTES.
        """
        encoded = self.member.encode()
        if not 0 < len(encoded) <= MAX_NAME_BYTES:
            raise FrameError(
                f"the name {self.member!r} must have 1 to {MAX_NAME_BYTES} bytes", field="member", given=self.member
            )
        head = _GREETING.pack(MAGIC, VERSION, self.channel, self.stream, len(encoded), self.generation, nonce)
        return head + encoded

    @staticmethod
    def name_bytes(head: bytes) -> int:
        """Return the length in bytes of the name that follows the `head` of a greeting.

        Raises:
            FrameError: The bytes are not the head of a greeting.
        """
        magic, version, _, _, length, _, _ = _GREETING.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise FrameError(f"not a greeting: {head[:5]!r}", rule="no-greeting")
        if not 0 < length <= MAX_NAME_BYTES:
            raise FrameError(f"a greeting with a name of {length} bytes")
        return int(length)

    @classmethod
    def unpack(cls, head: bytes, name: bytes) -> Greeting:
        """Return the greeting of a head that `name_bytes` accepted and the name after it."""
        _, _, channel, stream, _, generation, _ = _GREETING.unpack(head)
        return cls(name.decode(errors="replace"), channel, stream, generation)
