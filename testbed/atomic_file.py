"""Files that are written whole: a reader sees all of the old content or all of the new.

    NAME.<thread>-<process>.new   written, synced   --rename-->   NAME   and the folder synced, which holds the name

This holds after a kill and after a power failure: without the first sync a file system may keep the rename and lose the
content written before it, so that NAME is empty.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: The ending of the name of an unfinished file. A kill leaves such a file beside the old one.
UNFINISHED = ".new"

#: A part of the names of this process's unfinished files. Processes of other containers and hosts have threads with the
#: same numbers, and may write into the same folder.
_PROCESS = os.urandom(4).hex()
_FRESH = re.compile(rf"(.+)\.\d+-[0-9a-f]{{8}}{re.escape(UNFINISHED)}")


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file for the new content of `path`, which replaces `path` when the context ends without an error.

    Any number of threads and processes may write the same path: the last content stays. A link is followed. A pipe or a
    device such as /dev/stdout is written to directly. `mode` has the new file's permissions, less the umask. An OSError
    names `path`.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
        else:
            with _beside(path.resolve(), mode) as file:
                yield file
    except OSError as error:  # the error of a write names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def unfinished(path: Path) -> str | None:
    """Return the name of the file that this unfinished one was to replace; None if it is another program's file."""
    found = _FRESH.fullmatch(path.name)
    return found and found[1]


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a whole text file, in UTF-8, as `replacing` does. Bytes of names that are not UTF-8 are escaped."""
    with replacing(path, mode) as file:
        file.write(text.encode(errors="backslashreplace"))


def check_new(paths: Iterable[Path]) -> None:
    """Raise FileExistsError for the first path that is a file already. A device such as /dev/stdout may be written."""
    for path in paths:
        if path.is_file() and not path.is_relative_to("/dev"):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


@contextmanager
def new_folder(folder: Path, mode: int = 0o777) -> Iterator[list[Path]]:
    """Make a folder and its parents where they are missing, for files that the body writes.

    Yields the folders that were made, innermost first. After an error, those of them that are empty are removed.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
        yield made
    except BaseException:
        remove_empty(made)
        raise


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove each of the folders that is empty, in their order."""
    for folder in folders:
        with suppress(OSError):  # there is something in it
            folder.rmdir()


@contextmanager
def _beside(path: Path, mode: int) -> Iterator[BinaryIO]:
    # No other living thread has this number here, so a file of that name is left from a killed one.
    fresh = path.with_name(f"{path.name}.{threading.get_native_id()}-{_PROCESS}{UNFINISHED}")
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
        if error.errno != errno.EINVAL:  # some network file systems can't sync folders, and keep the order themselves
            raise
    finally:
        os.close(descriptor)
