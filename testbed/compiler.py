"""C sources, compiled when they have changed: the core that shapes links, and the planner's inner loops."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import CANNOT
from testbed.resources import BUILD

#: Debian's packages of a C compiler and the C library's headers.
PACKAGES = "gcc libc6-dev"

PACKAGE = Path(__file__).parent
C_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wno-missing-field-initializers")


class CompilerError(RuntimeError):
    """No compiler is installed, it failed, or its result cannot be loaded; the text says what to do."""

    exit_code = CANNOT


def library(room: str) -> ctypes.CDLL:
    """Return the functions of the C files in a folder of this package, `library("planning")`. Raises CompilerError."""
    folder = PACKAGE / room
    binary = BUILD / f"testbed-{folder.name}.so"
    compile_c(sorted(folder.glob("*.[ch]")), [*C_FLAGS, "-fPIC", "-shared"], binary)
    try:
        return ctypes.CDLL(str(binary))
    except OSError as error:  # its text names the file
        remedy = "remove it, to compile it again, or mount its file system without noexec"
        raise CompilerError(f"a compiled library can't be loaded: {error}; {remedy}") from error


def compile_c(sources: Sequence[Path], flags: Sequence[str], binary: Path) -> Path:
    """Return `binary`, compiled from `sources` unless sources, flags, kind of machine and C library are unchanged.

    The digest of them lies beside the binary, so a checkout that only touches the files' times compiles nothing. The
    compiler writes to another name and the result is moved into place, so a running binary keeps its file. Headers
    among the sources count for the digest alone.

    Raises:
        CompilerError: No compiler is installed, or it failed.
    """
    text = b"".join(file.read_bytes() for file in sources)
    made_for = (*flags, platform.machine(), *platform.libc_ver())
    digest = hashlib.sha256(text + " ".join(made_for).encode()).hexdigest()
    stamp = binary.with_suffix(".sha256")
    if binary.exists() and stamp.exists() and stamp.read_text() == digest:
        return binary
    compiler = shutil.which("cc")
    if compiler is None:
        raise CompilerError(f"{sources[0].parent} needs a C compiler; install one: apt-get install {PACKAGES}")
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
