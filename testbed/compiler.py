"""C sources, compiled when they must be: the core that shapes links, and what the planner computes most with."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import CANNOT
from testbed.resources import BUILD

#: What Debian calls a C compiler and the headers of its library.
PACKAGES = "gcc libc6-dev"

PACKAGE = Path(__file__).parent
C_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wno-missing-field-initializers")


class CompilerError(RuntimeError):
    """There is no compiler, or it refused; the text says what to install."""

    exit_code = CANNOT


def library(room: str) -> ctypes.CDLL:
    """Return the functions of the C files in a folder of this package: `library("planning")`. CompilerError."""
    folder = PACKAGE / room
    binary = BUILD / f"testbed-{folder.name}.so"
    return ctypes.CDLL(str(compile_c(sorted(folder.glob("*.[ch]")), [*C_FLAGS, "-fPIC", "-shared"], binary)))


def compile_c(sources: Sequence[Path], flags: Sequence[str], binary: Path) -> Path:
    """`binary`, made of the C files among `sources` first where sources or flags are not those of the last time.

    The digest of both lies beside it, so a checkout that touches the files' time compiles nothing. The compiler writes
    to a name of its own and the result is moved into place: who runs the last one keeps its file. CompilerError.
    """
    text = b"".join(file.read_bytes() for file in sources)
    digest = hashlib.sha256(text + " ".join(flags).encode()).hexdigest()
    stamp = binary.with_suffix(".sha256")
    if binary.exists() and stamp.exists() and stamp.read_text() == digest:
        return binary
    compiler = shutil.which("cc")
    if compiler is None:
        raise CompilerError(f"no C compiler for {sources[0].parent}; install one: apt-get install {PACKAGES}")
    binary.parent.mkdir(parents=True, exist_ok=True)
    fresh = binary.with_suffix(f".{os.getpid()}")
    units = [str(file) for file in sources if file.suffix == ".c"]
    done = subprocess.run(
        [compiler, *flags, "-o", str(fresh), *units, "-lm"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CompilerError(
            f"{compiler} could not compile {sources[0].parent}; it needs the C library's and the kernel's headers: "
            f"apt-get install {PACKAGES}\n{done.stderr}"
        )
    fresh.replace(binary)
    stamp.write_text(digest)
    return binary
