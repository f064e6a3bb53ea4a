"""TensorBoard's files: written bit for bit in the format, and read, also from other writers."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry import tensorboard
from testbed.telemetry.printed_metrics import Figures
from testbed.telemetry.tensorboard import Scalar, read_figures, write_scalars

pytestmark = pytest.mark.pure

SCALARS = st.builds(
    Scalar,
    tag=st.text(min_size=1, max_size=20),
    step=st.integers(0, 2**40),
    at_s=st.floats(0, 2e9),
    value=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(scalars=st.lists(SCALARS, max_size=4))
def test_what_is_written_is_read_as_what_others_write(
    scalars: list[Scalar], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / tensorboard.file_name(0.0)
    with file.open("wb") as stream:
        write_scalars(stream, 0.0, scalars)
    assert list(read_figures(file)) == [Figures({s.tag: s.value}, s.step, s.at_s) for s in scalars]


def test_checksums_are_the_format_s() -> None:
    """RFC 3720 gives the CRC-32C of `123456789` as 0xE3069283; every file begins with the same header."""
    (masked,) = struct.unpack("<I", tensorboard._checksum(b"123456789"))
    turned = masked - 0xA282EAD8 & 0xFFFFFFFF
    assert (turned << 15 | turned >> 17) & 0xFFFFFFFF == 0xE3069283
    buffer = io.BytesIO()
    write_scalars(buffer, 0.0, ())
    assert buffer.getvalue()[:12].hex() == "1800000000000000a37f4b22"


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def sized(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def event(at_s: float, step: int, tag: str, value: float, tensor: bool) -> bytes:
    """Return an event as `SummaryWriter.add_scalar` writes it, with a tensor in newer versions."""
    number = struct.pack("<f", value)
    of_value = sized(8, varint(1 << 3) + varint(1) + sized(5, number)) if tensor else varint(2 << 3 | 5) + number
    record = varint(1 << 3 | 1) + struct.pack("<d", at_s) + varint(2 << 3) + varint(step)
    record += sized(5, sized(1, sized(1, tag.encode()) + of_value))
    return struct.pack("<QI", len(record), 0) + record + bytes(4)


@pytest.mark.parametrize("tensor", [False, True])
def test_a_file_of_tensorboards_is_read_as_far_as_it_is_whole(tmp_path: Path, tensor: bool) -> None:
    file = tmp_path / "events.out.tfevents.1"
    whole = event(1e9, 300, "loss", 0.5, tensor)
    file.write_bytes(whole + whole[: len(whole) // 2])
    assert list(read_figures(file)) == [Figures({"loss": 0.5}, 300, 1e9)]


def test_a_picture_hides_no_figure_after_it(tmp_path: Path) -> None:
    """Only a record whose length has its checksum is passed over: a damaged length leads nowhere."""
    file, length = tmp_path / "events.out.tfevents.1", struct.pack("<Q", tensorboard.LONGEST_RECORD + 1)
    after = bytes(tensorboard.LONGEST_RECORD + 1 + 4) + event(1e9, 300, "loss", 0.5, tensor=False)
    file.write_bytes(length + tensorboard._checksum(length) + after)
    assert list(read_figures(file)) == [Figures({"loss": 0.5}, 300, 1e9)]
    for damaged in (length + bytes(4), bytes([255] * 8) + tensorboard._checksum(bytes([255] * 8))):
        file.write_bytes(damaged + after)
        assert list(read_figures(file)) == []


def test_a_step_before_the_first_is_negative(tmp_path: Path) -> None:
    """As of an evaluation before training; protobuf writes -1 as 2**64 - 1."""
    file = tmp_path / "events.out.tfevents.1"
    file.write_bytes(event(1e9, 2**64 - 1, "loss", 0.5, tensor=False))
    assert [figures.step for figures in read_figures(file)] == [-1]


@given(content=st.binary(max_size=200))
def test_no_file_is_too_broken_to_be_read(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "tfevents"
    file.write_bytes(struct.pack("<QI", len(content), 0) + content + bytes(4))
    list(read_figures(file))


def test_a_value_beyond_the_format_s_floats_is_infinite_and_hides_no_other(tmp_path: Path) -> None:
    file = tmp_path / tensorboard.file_name(0.0)
    with file.open("wb") as stream:
        write_scalars(stream, 0.0, [Scalar("ppl", 1, 1.0, 1e40), Scalar("loss", 1, 1.0, 2.0)])
    assert b"ppl" in file.read_bytes()
    assert [figures.values["loss"] for figures in read_figures(file) if "loss" in figures.values] == [2.0]
