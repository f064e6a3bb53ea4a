"""What a frame says of the part of a message that it carries."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from testbed.sync.errors import FrameError

_HEADER: Final = struct.Struct("<BIIIdQQ")

#: Of each frame.
HEADER_BYTES: Final = _HEADER.size

#: A frame's part of a message has so many bytes at most. Tokens and acknowledgements overtake a model between two of
#: its parts: at 20 Mbit/s they wait for 26 ms at most.
PART_BYTES: Final = 64 * 1024


class PartHeader(NamedTuple):
    """The part that begins `offset` bytes into a message of `size` bytes, the sender's `sequence`-th to this peer.

    `code`, `number`, `amount` and `weight` are the message's; see WireMessage.
    """

    code: int
    sequence: int
    number: int
    amount: int
    weight: float
    size: int
    offset: int = 0

    def pack(self) -> bytes:
        """As it travels."""
        return _HEADER.pack(*self)

    @classmethod
    def unpack(cls, header: bytes) -> PartHeader:
        """The header that arrived, of HEADER_BYTES; FrameError when it is none."""
        unpacked = cls(*_HEADER.unpack(header))
        if not 0 <= unpacked.weight < float("inf"):
            raise FrameError(
                f"weight {unpacked.weight} is not a finite number of at least 0", field="weight", given=unpacked.weight
            )
        return unpacked
