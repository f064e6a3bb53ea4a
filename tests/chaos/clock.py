"""The time of day as a run's processes see it, which may be set: see clock.c.

Only of members that are processes: containers have an image of their own, and the machine's clock is not ours.
"""

from __future__ import annotations

import struct
from pathlib import Path

from testbed.compiler import C_FLAGS, compile_c
from tests.run.running import REPOSITORY

SOURCE = Path(__file__).with_name("clock.c")
LIBRARY = REPOSITORY / "build" / "clock.so"
FILE = "clock"


def settable(folder: Path) -> tuple[str, ...]:
    """What goes before a program so that `step` sets its time of day, by a file in the folder. CompilerError."""
    step(folder, 0)
    library = compile_c([SOURCE], [*C_FLAGS, "-fPIC", "-shared"], LIBRARY)
    return ("env", f"LD_PRELOAD={library}", f"CLOCK_FILE={folder / FILE}")


def step(folder: Path, seconds: int) -> None:
    """From now on it is so many seconds later than it is, for all that were started so."""
    file = folder / FILE
    file.touch()
    with file.open("r+b") as opened:  # in place: they have it mapped
        opened.write(struct.pack("=q", seconds))
