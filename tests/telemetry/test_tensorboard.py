"""Files for TensorBoard: read back by what reads those of others, and of the format to the bit."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry import tensorboard
from testbed.telemetry.curves import Figures, figures_of
from testbed.telemetry.tensorboard import Scalar, write_scalars

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
    assert list(figures_of(file)) == [Figures({s.tag: s.value}, s.step, s.at_s) for s in scalars]


def test_checksums_are_the_format_s() -> None:
    """RFC 3720's check of CRC-32C, `123456789` to 0xE3069283; and the header that every such file begins with."""
    (masked,) = struct.unpack("<I", tensorboard._checksum(b"123456789"))
    turned = masked - 0xA282EAD8 & 0xFFFFFFFF
    assert (turned << 15 | turned >> 17) & 0xFFFFFFFF == 0xE3069283
    buffer = io.BytesIO()
    write_scalars(buffer, 0.0, ())
    assert buffer.getvalue()[:12].hex() == "1800000000000000a37f4b22"
