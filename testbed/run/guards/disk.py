"""Whether a disk has room left for a run to go on, and to end well."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from testbed.run.errors import RunFailed

#: What is left below this is for the run's summary and its page, for its workers' logs of 4 MiB each at most, and for
#: the host.
LEAST_FREE_BYTES = 64 << 20
#: The same for files, of which a run has some hundred.
LEAST_FREE_FILES = 1000
#: What begins with this says what is short.
DISK_OF = "the disk of "


def check_room(folders: Iterable[Path]) -> None:
    """Raise RunFailed where something is short on their file systems."""
    if short := shortage(folders):
        raise RunFailed(short)


def shortage(folders: Iterable[Path]) -> str | None:
    """What is short on the file systems of these folders, and what to do; None where there is enough."""
    for folder in folders:
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        if free < LEAST_FREE_BYTES:
            return (
                f"{DISK_OF}{folder} is full: {free / 1e6:.1f} MB are free, a run needs "
                f"{LEAST_FREE_BYTES / 1e6:.1f} MB; free some, or run in another folder"
            )
        if found.f_files and found.f_favail < LEAST_FREE_FILES:  # some file systems count none
            return (
                f"{DISK_OF}{folder} has room for {found.f_favail} more files, a run needs {LEAST_FREE_FILES}; "
                "remove some, or run in another folder"
            )
    return None
