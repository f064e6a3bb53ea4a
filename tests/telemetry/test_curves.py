"""Figures that programs give of themselves."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry.curves import Figures, figures_in, figures_of

pytestmark = pytest.mark.pure

NAMES = st.text("abcdefgh_", min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ("step=3 loss=0.25 lr=1e-3", Figures({"loss": 0.25, "lr": 1e-3}, 3)),
        ("epoch 1: loss=2, acc=0.5", Figures({"loss": 2.0, "acc": 0.5})),
        ('{"global_step": 7, "loss": 1, "name": "x", "done": true}', Figures({"loss": 1.0}, 7)),
        ("train/loss=4.5", Figures({"train/loss": 4.5})),
        ("loss=nan", None),
        ("took=12.3.4 seed==3 a=b", None),
        ("step=3", None),
        ("{broken", None),
        ("nothing", None),
    ],
)
def test_what_a_line_says(line: str, figures: Figures | None) -> None:
    assert figures_in(line) == figures


@given(values=st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=8))
def test_both_forms_say_the_same(values: dict[str, float]) -> None:
    assert figures_in(json.dumps(values)) == figures_in(" ".join(f"{name}={value!r}" for name, value in values.items()))


@given(line=st.text())
def test_any_line_may_be_printed(line: str) -> None:
    figures_in(line)


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def sized(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def event(at_s: float, step: int, tag: str, value: float, tensor: bool) -> bytes:
    """As `SummaryWriter.add_scalar` writes one; of late as a tensor."""
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
    assert list(figures_of(file)) == [Figures({"loss": 0.5}, 300, 1e9)]


@given(content=st.binary(max_size=200))
def test_no_file_is_too_broken_to_be_read(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "tfevents"
    file.write_bytes(struct.pack("<QI", len(content), 0) + content + bytes(4))
    list(figures_of(file))
