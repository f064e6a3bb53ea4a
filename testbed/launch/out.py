"""What programs leave in their containers' OUT: taken from there as it is, while the container runs.

The container may be anybody's, so no link in it is followed, nothing that is no plain file is opened, and no more is
taken than it had room for: a file with holes may be larger than all memory, and is then left where it is.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from testbed.emulation.containers.fleet import OUT
from testbed.emulation.process import ProcessIdentity

CHUNK_BYTES = 1 << 20


def take_out(container: ProcessIdentity, target: Path) -> None:
    """Copy what is there into the folder `target`, which is made where there is something. Nothing where the container
    has ended, or has no OUT."""
    root = _opened(container)
    if root is None:
        return
    try:
        file_system = os.fstatvfs(root)
        left = file_system.f_blocks * file_system.f_frsize
        for folder, _, files, descriptor in os.fwalk(".", dir_fd=root):
            for name in files:
                left -= _copy(name, descriptor, target / folder / name, left)
    finally:
        os.close(root)


def clear_out(container: ProcessIdentity) -> None:
    """Remove what is there: an earlier launch left it."""
    root = _opened(container)
    if root is None:
        return
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.name, ignore_errors=True, dir_fd=root)
                else:
                    os.unlink(entry.name, dir_fd=root)
    finally:
        os.close(root)


def _opened(container: ProcessIdentity) -> int | None:
    """A container's OUT; None where it is no file system of its own, which bounds it."""
    above = container.folder / "root"
    try:
        root = os.open(f"{above}{OUT}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    if container.is_running and os.fstat(root).st_dev != above.stat().st_dev:
        return root
    os.close(root)
    return None


def _copy(name: str, folder: int, target: Path, most_bytes: int) -> int:
    try:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return 0  # it is a link, or not there any more
    taken = 0
    with os.fdopen(source, "rb") as file:
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            return 0
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            while piece := file.read(min(CHUNK_BYTES, most_bytes - taken)):
                copy.write(piece)
                taken += len(piece)
    return taken
