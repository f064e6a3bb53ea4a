"""The first process of containers in which nothing runs but what is put there."""

from __future__ import annotations

from pathlib import Path

from testbed.compiler import C_FLAGS, CompilerError, compile_c
from testbed.emulation.errors import EmulationError
from testbed.resources import BUILD

SOURCE = Path(__file__).with_name("idle.c")
BINARY = BUILD / "testbed-idle"

#: Where a container sees it.
PROGRAM = "/testbed-idle"


def idle_program() -> Path:
    """The program, compiled first if it must be. EmulationError."""
    try:
        return compile_c([SOURCE], [*C_FLAGS, "-static", "-s"], BINARY)
    except CompilerError as error:
        raise EmulationError(str(error)) from None
