"""Copies the files that programs leave in OUT or change in FILES, while their container runs.

A container's contents are not trusted. So no link in it is followed, only plain files are opened, and no more bytes are
copied than its file system has room for: a file with holes may be larger than all memory, and is then not copied.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from testbed.emulation.containers.fleet import FILES
from testbed.emulation.containers.limits import CHANGES, OUT
from testbed.emulation.process import PROC, ProcessIdentity
from testbed.launch.output import printable

#: The folder in CHANGES with the files that are new or changed in FILES.
UPPER = "upper"

#: Folders that are not copied: an interpreter makes one beside the modules that it imports from FILES.
CACHES = ("__pycache__",)

#: The folder, in a worker's folder, for a file of FILES with the same name as a file of OUT.
BESIDE = Path(FILES.strip("/"))

#: The most folders within one another from which files are copied. The copies' readers follow folders by recursion.
MOST_DEPTH = 100

#: The most names of files that were not copied in a summary.
MOST_NAMES = 20

CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class CopiedFiles:
    """How many files and bytes were copied from one worker's container, and which files were left out."""

    files: int = 0
    size: int = 0  # in bytes
    #: What was not copied, with the reason.
    left_out: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """Return the counts of copied files and bytes, and the files left out, as a summary's entry."""
        return {"files": self.files, "bytes": self.size, "left_out": self.left_out[:MOST_NAMES]}


def copy_results(container: ProcessIdentity, target: Path) -> CopiedFiles:
    """Copy the files that programs left in a container's OUT or changed in its FILES, and return what was copied.

    The container is given by its first process; nothing is copied if that has ended. A folder that the container lacks
    is skipped. The folder `target` is made if there are files.
    """
    kept = CopiedFiles()
    for place in (OUT, f"{CHANGES}/{UPPER}"):
        with _opened(container, place) as root:
            if root is not None:
                _take(root, target, kept)
    return kept


def describe_copied(kept: Mapping[str, CopiedFiles], folder: Path) -> Iterator[str]:
    """Yield a line on the files copied from each worker into its folder of `folder`, and one on those that were not."""
    files, size = sum(each.files for each in kept.values()), sum(each.size for each in kept.values())
    if files:
        noun = "file" if files == 1 else "files"
        yield f"{files} {noun} that the programs made or changed, {_size(size)}, in {folder}"
    left_out = [f"{worker}: {name}" for worker, each in kept.items() for name in each.left_out]
    if left_out:
        more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        yield f"not copied: {printable(left_out[0].encode()).decode()}{more}"


def clear_results(container: ProcessIdentity) -> None:
    """Remove the files in OUT, which an earlier launch left."""
    with _opened(container, OUT) as root:
        if root is not None:
            empty_folder(root)


@contextmanager
def open_folder(path: str, parent: int | None = None) -> Iterator[int]:
    """Open a folder, and yield its descriptor. Raises OSError where it is a link, or no folder.

    The path begins in the open folder `parent`, by default in the current one.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield folder
    finally:
        os.close(folder)


def empty_folder(root: int) -> None:
    """Remove what the open folder `root` holds, except mounts.

    The folders in a folder are first moved into `root`. So a chain of thousands of folders, which a program makes with
    a few calls, takes no recursion and no long path.
    """
    mark, numbers = secrets.token_hex(8), count()
    folders = _unlink_files(root)
    while folders:
        name = folders.pop()
        with suppress(OSError):  # a mount is in it, or another program writes there
            with open_folder(name, root) as inner:
                for each in _unlink_files(inner):
                    fresh = f"{mark}-{next(numbers)}"
                    os.rename(each, fresh, src_dir_fd=inner, dst_dir_fd=root)
                    folders.append(fresh)
            os.rmdir(name, dir_fd=root)


def _unlink_files(folder: int) -> list[str]:
    """Remove the files in an open folder, and return the names of the folders in it."""
    with os.scandir(folder) as entries:
        inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    for name in (name for name, is_folder in inside.items() if not is_folder):
        with suppress(OSError):  # a mount is in its place, or another program removed it
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in inside.items() if is_folder]


def has_own_mounts(container: ProcessIdentity) -> bool:
    """Return whether a process has not ended, and has other mounts than this process."""
    try:
        theirs, ours = (container.folder / "ns/mnt").stat(), (PROC / "self/ns/mnt").stat()
    except OSError:
        return False
    return container.is_running and not os.path.samestat(theirs, ours)


@contextmanager
def _opened(container: ProcessIdentity, place: str) -> Iterator[int | None]:
    """Open a folder of a container. None if it is not a file system of its own, by which its size is bounded."""
    above = container.folder / "root"
    root: int | None = None
    with ExitStack() as stack:
        if has_own_mounts(container):
            with suppress(OSError):
                root = stack.enter_context(open_folder(f"{above}{place}"))
        bounded = root is not None and container.is_running and os.fstat(root).st_dev != above.stat().st_dev
        yield root if bounded else None


def _take(root: int, target: Path, kept: CopiedFiles) -> None:
    """Copy the plain files below the open folder `root`, at most as many bytes as its file system is large."""
    file_system = os.fstatvfs(root)
    room = file_system.f_blocks * file_system.f_frsize
    for folder, folders, files, descriptor in os.fwalk(".", dir_fd=root):
        folders[:] = [name for name in folders if name not in CACHES]
        links = [name for name in folders if _is_link(name, descriptor)]
        if folder.count("/") == MOST_DEPTH:
            deeper = [name for name in folders if name not in links]
            kept.left_out += [f"{_shown(Path(folder, name))} (too deep)" for name in deeper]
            folders.clear()
        for name in [*files, *links]:
            inside = Path(folder, name)
            try:
                taken = _copy(name, descriptor, _free_path(inside, target), room)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                taken = "its path is too long on this machine"
            if isinstance(taken, str):
                kept.left_out += [f"{_shown(inside)} ({taken})"] if taken else []
                continue
            room -= taken
            kept.files, kept.size = kept.files + 1, kept.size + taken


def _shown(path: Path) -> str:
    """Return a path as text; a name may be any bytes."""
    return os.fsencode(path).decode(errors="replace")


def _free_path(inside: Path, target: Path) -> Path:
    """Return a free path for a file in `target`: its own, or the same below a folder BESIDE.

    If that is taken too, `~` is added to the folder's name until it is free.
    """
    place, beside = target / inside, BESIDE
    while place.exists() or any(above.is_file() for above in place.parents if target in above.parents):
        place, beside = target / beside / inside, beside.with_name(f"{beside.name}~")
    return place


def _is_link(name: str, folder: int) -> bool:
    """Return whether a file is a link; False if a program of another launch removed it meanwhile."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _copy(name: str, folder: int, target: Path, most_bytes: int) -> int | str:
    """Copy a plain file. Return how many bytes it has, or why it was left out; empty if there was nothing to copy."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISCHR(found.st_mode):
            return ""  # an overlay's mark of a file that was removed
        if stat.S_ISLNK(found.st_mode):
            return "a link"
        if not stat.S_ISREG(found.st_mode):
            return "not a plain file"
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return ""  # the file was removed meanwhile
    taken = 0
    with os.fdopen(source, "rb") as file:
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            return "not a plain file"
        if found.st_size > most_bytes:
            return "it has holes, and is larger than its file system"
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            while piece := file.read(min(CHUNK_BYTES, most_bytes - taken)):
                copy.write(piece)
                taken += len(piece)
    return taken


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
