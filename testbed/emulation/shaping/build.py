"""Compiling the shaping core, when it must be."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from testbed.emulation.shaping.base import ShapingError

SOURCE = Path(__file__).with_name("core")
#: A name that stands out in a process list.
BINARY = Path(__file__).parents[3] / "build" / "testbed-shaper"
#: It reads what comes in packets, and runs as root: a write past an object's end shall end it, and no address in it
#: be known beforehand.
HARDENING = ("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wno-missing-field-initializers", *HARDENING)
PACKAGES = "gcc libc6-dev"


def build_core() -> Path:
    """The compiled core, built first if its sources or flags are not those of the last build.

    The digest of both lies beside it, so a checkout that touches the file's time rebuilds nothing. The
    compiler writes to a name of its own and the result is moved into place: a core that runs keeps its file.
    """
    sources = [str(file) for file in sorted(SOURCE.glob("*.c"))]
    text = b"".join(file.read_bytes() for file in sorted(SOURCE.glob("*.[ch]")))
    digest = hashlib.sha256(text + " ".join(FLAGS).encode()).hexdigest()
    stamp = BINARY.with_suffix(".sha256")
    if BINARY.exists() and stamp.exists() and stamp.read_text() == digest:
        return BINARY
    compiler = shutil.which("cc")
    if compiler is None:
        raise ShapingError(f"no C compiler for the userspace shaping core; install one: apt-get install {PACKAGES}")
    BINARY.parent.mkdir(exist_ok=True)
    fresh = BINARY.with_suffix(f".{os.getpid()}")
    compiled = subprocess.run(
        [compiler, *FLAGS, "-o", str(fresh), *sources, "-lm"], capture_output=True, text=True, check=False
    )
    if compiled.returncode != 0:
        raise ShapingError(
            f"{compiler} could not compile {SOURCE}; it needs the C library's and the kernel's headers: "
            f"apt-get install {PACKAGES}\n{compiled.stderr}"
        )
    fresh.replace(BINARY)
    stamp.write_text(digest)
    return BINARY
