"""Writes and reads TensorBoard's files of training curves: scalars by step and time.

    length (8 bytes)   its checksum (4)   an `Event` of TensorFlow's protocol   its checksum (4)      for each event

TensorBoard's own writer would bring along protobuf and gRPC for the three messages here.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from testbed.telemetry.printed_metrics import Figures

#: The names of TensorBoard's files, as a glob pattern.
EVENTS = "*tfevents*"

#: The content of the first event, by which TensorBoard knows the format.
FILE_VERSION = "brain.Event:2"

#: The polynomial of CRC-32C, bits reversed.
POLYNOMIAL = 0x82F63B78

#: The longest record that is read. A longer one is that of a picture or the like, or its length is damaged.
LONGEST_RECORD = 1 << 20

_HEADER = struct.Struct("<QI")
_CHECKSUM_BYTES = 4

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Scalar:
    """The value of a curve at a step and a time (`at_s`, Unix time)."""

    tag: str
    step: int
    at_s: float
    value: float


def file_name(at_s: float) -> str:
    """Return the name of a file that TensorBoard finds, for a run that began at `at_s` (Unix time)."""
    return f"events.out.tfevents.{int(at_s)}.testbed"


def write_scalars(file: BinaryIO, began_s: float, scalars: Iterable[Scalar]) -> None:
    """Write a whole file: its version, then the scalars in order."""
    file.write(_record(_time(began_s) + _bytes(3, FILE_VERSION.encode())))
    for one in scalars:
        value = _bytes(1, one.tag.encode()) + _key(2, _FIXED_32) + _float(one.value)
        file.write(_record(_time(one.at_s) + _key(2, _VARINT) + _varint(one.step) + _bytes(5, _bytes(1, value))))


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return b"".join((length, _checksum(length), event, _checksum(event)))


def _time(at_s: float) -> bytes:
    return _key(1, _FIXED_64) + struct.pack("<d", at_s)


def _float(value: float) -> bytes:
    """Return a value as the format's float of 32 bits; infinity where that has no room for it."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


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
    """Return the CRC-32C of a content as the format masks it: rotated, and with a constant added."""
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


def read_figures(file: Path) -> Iterator[Figures]:
    """Yield the floats, and tensors of one float, of each event in a TensorBoard file, up to a damaged record.

    A record that is too long to be read is passed over if its length has the right checksum.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        while len(header := stream.read(_HEADER.size)) == _HEADER.size:
            length, _ = _HEADER.unpack(header)
            if length > LONGEST_RECORD:
                if length >= size or _checksum(header[:-_CHECKSUM_BYTES]) != header[-_CHECKSUM_BYTES:]:
                    return
                stream.seek(length + _CHECKSUM_BYTES, os.SEEK_CUR)
                continue
            record = stream.read(length)
            if len(record) < length or len(stream.read(_CHECKSUM_BYTES)) < _CHECKSUM_BYTES:
                return
            try:
                if (figures := _of_event(record)) is not None:
                    yield figures
            except (ValueError, struct.error):
                return


def _of_event(record: bytes) -> Figures | None:
    """Return the figures of an `Event` of TensorFlow's protocol: field 1 time, 2 step, 5 a summary of (1) values."""
    at_s, step, values = None, None, dict[str, float]()
    for field, kind, value in _fields(record):
        if (field, kind) == (1, _FIXED_64):
            at_s = struct.unpack("<d", value)[0]
        elif (field, kind) == (2, _VARINT):
            step = int.from_bytes(value, "little", signed=True)
        elif (field, kind) == (5, _BYTES):
            for inner, inner_kind, one in _fields(value):
                if (inner, inner_kind) == (1, _BYTES) and (found := _of_value(one)) is not None:
                    values |= found
    return Figures(values, step, at_s) if values else None


def _of_value(record: bytes) -> dict[str, float] | None:
    """Return {tag: value} of a summary's value, or None if that is not one finite float.

    Fields: 1 the tag; 2 a float, or 8 a tensor that has it in 5 or 4 (bytes).
    """
    tag, number = None, None
    for field, kind, value in _fields(record):
        if (field, kind) == (1, _BYTES):
            tag = value.decode()
        elif (field, kind) == (2, _FIXED_32):
            number = struct.unpack("<f", value)[0]
        elif (field, kind) == (8, _BYTES):
            floats = [part for inner, _, part in _fields(value) if inner in (4, 5) and len(part) == 4]
            number = struct.unpack("<f", floats[0])[0] if len(floats) == 1 else None
    return {tag: number} if tag and number is not None and math.isfinite(number) else None


def _fields(record: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, wire type, value) of each field of a protobuf message; the value of a varint as eight bytes."""
    at = 0
    while at < len(record):
        key, at = _read_varint(record, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _read_varint(record, at)
            yield key >> 3, kind, (number & (2**64 - 1)).to_bytes(8, "little")
            continue
        if kind == _BYTES:
            size, at = _read_varint(record, at)
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"a field of a TensorBoard record has the unknown wire type {kind}")
        if at + size > len(record):
            raise ValueError("a field of a TensorBoard record goes beyond the record's end")
        yield key >> 3, kind, record[at : at + size]
        at += size


def _read_varint(record: bytes, at: int) -> tuple[int, int]:
    """Return the varint (a whole number of protobuf) that begins at `at`, and the place after it."""
    value = 0
    for place in range(10):
        if at >= len(record):
            raise ValueError("a varint of a TensorBoard record is cut short")
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise ValueError("a varint of a TensorBoard record has more than ten bytes")
