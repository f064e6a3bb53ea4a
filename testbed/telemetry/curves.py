"""Figures that a program gives of itself: in what it prints, and in files that TensorBoard reads.

step=12 loss=0.83 …          words with a number after `=`
{"step": 12, "loss": 0.83}   a JSON object
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: A word, and a number after it that nothing but a unit or a comma may follow.
PAIR = re.compile(r"(?<![\w=])([A-Za-z_][\w./-]*)=([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])")

#: What counts the others and is no curve itself.
STEPS = ("step", "global_step", "iteration", "round")

#: A line with more has no figures that one could look at.
MOST_FIGURES = 32
LONGEST_LINE = 4096

#: TensorBoard's files, by their names.
EVENTS = "*tfevents*"
#: A record that is called longer than this is none.
LONGEST_RECORD = 1 << 20

_LENGTH = struct.Struct("<QI")
_CHECKSUM_BYTES = 4
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What a program gave at one time, by name; `step` where it said which, `at_s` (Unix time) where the file does."""

    values: Mapping[str, float]
    step: int | None = None
    at_s: float | None = None


def figures_in(line: str) -> Figures | None:
    """The figures of a printed line; None where it has none."""
    if len(line) > LONGEST_LINE:
        return None
    found = _of_object(line) if line.lstrip().startswith("{") else {key: float(v) for key, v in PAIR.findall(line)}
    finite = {key: value for key, value in found.items() if math.isfinite(value)}
    step = next((int(finite[name]) for name in STEPS if name in finite), None)
    values = {key: value for key, value in finite.items() if key not in STEPS}
    return Figures(values, step) if 0 < len(values) <= MOST_FIGURES else None


def _of_object(line: str) -> dict[str, float]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {key: float(v) for key, v in value.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def figures_of(file: Path) -> Iterator[Figures]:
    """The figures of a file of TensorBoard's, as far as it is whole. Simple values and tensors of one float count."""
    with file.open("rb") as stream:
        while len(header := stream.read(_LENGTH.size)) == _LENGTH.size:
            length, _ = _LENGTH.unpack(header)
            record = stream.read(length) if length <= LONGEST_RECORD else b""
            if len(record) < length or len(stream.read(_CHECKSUM_BYTES)) < _CHECKSUM_BYTES:
                return
            try:
                if (figures := _of_event(record)) is not None:
                    yield figures
            except (ValueError, struct.error, UnicodeDecodeError):
                return


def _of_event(record: bytes) -> Figures | None:
    """An `Event` of TensorFlow's protocol: 1 the time, 2 the step, 5 a summary of (1) values."""
    at_s, step, values = None, None, dict[str, float]()
    for field, kind, value in _fields(record):
        if (field, kind) == (1, _FIXED_64):
            at_s = struct.unpack("<d", value)[0]
        elif (field, kind) == (2, _VARINT):
            step = int.from_bytes(value, "little")
        elif (field, kind) == (5, _BYTES):
            for inner, inner_kind, one in _fields(value):
                if (inner, inner_kind) == (1, _BYTES) and (found := _of_value(one)) is not None:
                    values |= found
    return Figures(values, step, at_s) if values else None


def _of_value(record: bytes) -> dict[str, float] | None:
    """A value of a summary: 1 its tag; 2 a float, or 8 a tensor, which holds one in 5 (floats) or 4 (bytes)."""
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
    """(number, kind, value) of each field of a message; a number that is written in parts as eight bytes."""
    at = 0
    while at < len(record):
        key, at = _varint(record, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(record, at)
            yield key >> 3, kind, (number & (2**64 - 1)).to_bytes(8, "little")
            continue
        if kind == _BYTES:
            size, at = _varint(record, at)
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"no field is of kind {kind}")
        if at + size > len(record):
            raise ValueError("a field goes beyond its message")
        yield key >> 3, kind, record[at : at + size]
        at += size


def _varint(record: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(record):
            raise ValueError("a number is cut short")
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")
