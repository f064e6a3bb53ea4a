"""Addresses of Unix sockets wherever they lie.

The kernel takes 107 bytes; paths that have the names of a run and of one of its members in them may be longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def address(path: Path) -> Iterator[str]:
    """A short address of the socket at `path`, in this process and while inside. OSError where it has no folder."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
