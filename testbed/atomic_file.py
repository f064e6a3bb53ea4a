"""Files that are written whole: whoever reads one sees all of the old content or all of the new.

    NAME.<thread>.new   written, then synced   --rename-->   NAME   and the folder synced, which holds the name

So it is after a kill, and after the power failed: without the first sync a file system may keep the rename and lose
what was written before it, and NAME is empty.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

#: How the name of a file ends that is not written to its end yet. A kill leaves it there, beside the old file.
UNFINISHED = ".new"


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file for the new content of `path`, in whose place it comes when the context ends. Left by an error, `path` is
    as it was. `mode` is what it may be used for, less the umask, as for `os.open`.

    Any number of threads and processes may write the same path: the last one's content stays. A link is followed, and
    what is no regular file (a pipe, /dev/stdout) is written to as it comes. Any OSError names `path`.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
        else:
            with _beside(path.resolve(), mode) as file:
                yield file
    except OSError as error:  # that of a write names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a whole text file, in UTF-8, as `replacing` does."""
    with replacing(path, mode) as file:
        file.write(text.encode())


@contextmanager
def _beside(path: Path, mode: int) -> Iterator[BinaryIO]:
    # No other thread that lives has this number; a file of that name is of one that was killed.
    fresh = path.with_name(f"{path.name}.{threading.get_native_id()}{UNFINISHED}")
    fresh.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no such thing, and keep the order themselves
            raise
    finally:
        os.close(descriptor)
