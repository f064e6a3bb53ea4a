"""The shaping core, built with sanitizers.

It ends with a report on standard error at a fault that C does not notice: an access past an object's end or after it
was freed, or a number that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.emulation.shaping import process

FLAGS = (
    *(flag for flag in process.FLAGS if flag not in ("-O2", *process.HARDENING)),
    *("-O1", "-g", "-Werror", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
)


@contextmanager
def sanitized(folder: Path) -> Iterator[Path]:
    """While this is open `build_core` makes this one, in a folder of its own; its file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "FLAGS", FLAGS)
        patch.setattr(process, "BINARY", folder / "testbed-shaper")
        yield process.build_core()
