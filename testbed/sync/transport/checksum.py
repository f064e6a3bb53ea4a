"""A checksum of a chunk's bytes that costs a tenth of what CRC-32 does.

The bytes are laid in rows of 64 words of 64 bits; each column is summed, and CRC-32 is taken of the 64 sums and of
what is left over:

    w0  w1  ... w63
    w64 w65 ... w127
    ...
    ---------------- +  modulo 2^64
    s0  s1  ... s63  rest  -> CRC-32

Any flipped bit changes a sum, and so does a word that is lost, or moved to another column. It catches what a faulty
memory or network card does, not an adversary. PyTorch sums columns at 15 GB/s a core and without Python's lock;
zlib's CRC-32 runs at 2 GB/s, which was a third of the time of a round over loopback.
"""

from __future__ import annotations

import struct
import zlib

_SUMS = struct.Struct("<64q")
_ROW = _SUMS.size


def checksum(data: memoryview) -> int:
    """32 bits that stand for `data` (contiguous bytes)."""
    rows = len(data) // _ROW
    if not rows:
        return zlib.crc32(data)
    import torch  # here, since the rest of the transport, which the simulator reads constants of, needs no PyTorch

    whole = rows * _ROW
    words = torch.frombuffer(data[:whole], dtype=torch.uint8).view(rows, _ROW).view(torch.int64)
    sums = words.sum(0, dtype=torch.int64)
    return zlib.crc32(data[whole:], zlib.crc32(_SUMS.pack(*sums.tolist())))
