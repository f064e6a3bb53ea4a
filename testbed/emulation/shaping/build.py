"""Compiling the shaping core, when it must be."""

from __future__ import annotations

from pathlib import Path

from testbed.compiler import C_FLAGS, CompilerError, compile_c
from testbed.emulation.shaping.base import ShapingError
from testbed.resources import BUILD

SOURCE = Path(__file__).with_name("core")
#: A name that stands out in a process list.
BINARY = BUILD / "testbed-shaper"
#: It reads what comes in packets, and runs as root: a write past an object's end shall end it, and no address in it
#: be known beforehand.
HARDENING = ("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")
FLAGS = (*C_FLAGS, *HARDENING)


def build_core() -> Path:
    """The compiled core, built first if its sources or flags are not those of the last build. ShapingError."""
    try:
        return compile_c(sorted(SOURCE.glob("*.[ch]")), FLAGS, BINARY)
    except CompilerError as error:
        raise ShapingError(str(error)) from None
