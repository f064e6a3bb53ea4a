"""Files that TensorBoard reads, with training curves: scalars by step and time.

    length (8 bytes)   checksum of it (4)   an `Event` of TensorFlow's protocol   checksum of that (4)      for each

`curves.py` reads such files. TensorBoard's own writer would bring along protobuf and gRPC for the three messages here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

#: What the first event says, by which TensorBoard knows the format.
FILE_VERSION = "brain.Event:2"

#: CRC-32C, its bits the other way round.
POLYNOMIAL = 0x82F63B78

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Scalar:
    """A curve's value at a step, `at_s` in Unix time."""

    tag: str
    step: int
    at_s: float
    value: float


def file_name(at_s: float) -> str:
    """What TensorBoard looks for, of a run that began at `at_s` (Unix time)."""
    return f"events.out.tfevents.{int(at_s)}.testbed"


def write_scalars(file: BinaryIO, began_s: float, scalars: Iterable[Scalar]) -> None:
    """Write a whole file: its version, then each scalar, in the order in which they come."""
    file.write(_record(_time(began_s) + _bytes(3, FILE_VERSION.encode())))
    for one in scalars:
        value = _bytes(1, one.tag.encode()) + _key(2, _FIXED_32) + struct.pack("<f", one.value)
        file.write(_record(_time(one.at_s) + _key(2, _VARINT) + _varint(one.step) + _bytes(5, _bytes(1, value))))


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return b"".join((length, _checksum(length), event, _checksum(event)))


def _time(at_s: float) -> bytes:
    return _key(1, _FIXED_64) + struct.pack("<d", at_s)


def _bytes(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _checksum(content: bytes) -> bytes:
    """CRC-32C as the format has it: rotated, and with a constant added, since it is taken of what has one in it too."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF)


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_remainder, range(256)))
