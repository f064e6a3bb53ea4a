"""The time of day that a run's processes see, which can be set; clock.c does it.

It works for members that are processes: containers have an image of their own, and the machine's clock is shared.
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
    """Return the words before a program that let `step` set its time of day, by a file in the folder.

    Raises:
        CompilerError: clock.c can't be compiled.
    """
    step(folder, 0)
    library = compile_c([SOURCE], [*C_FLAGS, "-fPIC", "-shared"], LIBRARY)
    return ("env", f"LD_PRELOAD={library}", f"CLOCK_FILE={folder / FILE}")


def step(folder: Path, seconds: int) -> None:
    """Set the time of day `seconds` ahead for all programs that were started with `settable`."""
    file = folder / FILE
    file.touch()
    with file.open("r+b") as opened:  # in place: the programs have the file mapped
        opened.write(struct.pack("=q", seconds))
