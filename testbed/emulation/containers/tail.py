"""The end of a log, of which only the end is read."""

from __future__ import annotations

import os
from pathlib import Path

#: What is read of it.
TAIL_BYTES = 64 << 10


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a text file, from its last TAIL_BYTES."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-count:]
