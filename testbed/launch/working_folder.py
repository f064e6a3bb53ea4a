"""Makes the folder FILES of a worker's container writable; changes stay in the container.

Three mounts are stacked at FILES, all in the container's own mount namespace, with which they end:

    overlay   seen and written by programs; new and changed files are in CHANGES      mounted here, at a launch's start
    lower     the folder, in which its owner's files belong to the workers' user      mounted here
    bind      the folder of this machine, read-only                                   mounted by the engine
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from testbed.emulation.containers.fleet import FILES
from testbed.emulation.containers.limits import CHANGES
from testbed.emulation.network.namespace import call, in_own_thread
from testbed.emulation.process import ProcessIdentity
from testbed.launch.result_files import UPPER, empty_folder, has_own_mounts, open_folder

#: The overlay's working folder, in CHANGES beside UPPER.
SCRATCH = "scratch"

#: Features that leave contents of files or folders outside the upper folder. Some kernels have them on by default.
OVERLAY_OPTIONS = "redirect_dir=off,metacopy=off,index=off"

#: The numbers of system calls without a name in older C libraries; they are the same wherever Docker runs.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _AT_RECURSIVE, _AT_EMPTY_PATH, _AT_FDCWD = 1, 0x8000, 0x1000, -100
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_IDMAP = 1, 0x100000
_CLONE_NEWNS, _CLONE_FS = 0x20000, 0x200
_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2

#: The number of ids: (uid_t) -1 is not one.
_IDS = 2**32 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of a folder and of a container's programs."""

    #: The user and group of the folder.
    folder: tuple[int, int]
    #: The user and group that programs run as.
    programs: tuple[int, int]


def make_writable(containers: Iterable[ProcessIdentity]) -> list[str]:
    """Make FILES writable for the programs of containers, and discard changes of earlier programs.

    Containers, which are given by their first processes, stay unchanged without FILES. Returns the restrictions that
    remain, one sentence each: an older kernel keeps FILES read-only, or lets programs add files there and change none.
    """
    notes: dict[str, None] = {}
    with ExitStack() as stack:
        mappings: dict[Owners, int] = {}
        for container in containers:
            points = _mount_points(container) if has_own_mounts(container) else []
            if FILES not in points:
                continue
            if CHANGES not in points:
                note = f"{FILES} is read-only: its network is of an earlier version; take it down and up again"
                notes[note] = None
                continue
            try:
                _in_mounts_of(container, partial(_unmount_layers, points.count(FILES) - 1))
                owners = _owners(container)
                if owners not in mappings:
                    mappings[owners] = stack.enter_context(_mapping(owners))
                layers = _Layers(points, owners, mappings[owners])
                notes |= dict.fromkeys(_in_mounts_of(container, layers.mount))
            except FileNotFoundError:
                continue  # it has ended, which the start of a program in it reports
            except OSError as error:
                notes[f"{FILES} is read-only: this kernel does not let it be changed ({error.strerror})"] = None
    return list(notes)


def _unmount_layers(layers: int) -> None:
    """Unmount the layers of an earlier launch from FILES."""
    for _ in range(layers):
        call("umount2", FILES.encode(), _MNT_DETACH)


@dataclass(frozen=True, slots=True)
class _Layers:
    """Lays mounts over the folder FILES of one container, so that its programs can write there."""

    #: The container's mount points.
    points: list[str]
    owners: Owners
    #: The descriptor of a user namespace; -1 if this machine makes none.
    mapping: int

    def mount(self) -> list[str]:
        """Mount the layers, from a thread in the container's mount namespace. Return the restrictions that remain."""
        notes = []
        with ExitStack() as stack:
            below = {point: stack.enter_context(_cloned(point, _AT_RECURSIVE)) for point in self._submounts()}
            try:
                if self.owners.folder != self.owners.programs:
                    self._map_owners()
            except OSError as error:
                notes.append(
                    f"programs can make files in {FILES}, and change none that are there: this kernel or its file "
                    f"system maps no owners ({error.strerror})"
                )
            self._overlay()
            for point, tree in below.items():
                # The engine makes only the named mount read-only, and not the mounts within the folder.
                with suppress(OSError):
                    _set_attributes(tree, _MOUNT_ATTR_RDONLY, _AT_RECURSIVE)
                _attach(tree, point)
        return notes

    def _submounts(self) -> list[str]:
        """Return the outermost mounts within the folder, which an overlay does not show."""
        found = sorted({point for point in self.points if point.startswith(f"{FILES}/")})
        return [point for point in found if not any(point.startswith(f"{other}/") for other in found)]

    def _map_owners(self) -> None:
        with _cloned(FILES) as tree:
            _set_attributes(tree, _MOUNT_ATTR_IDMAP, mapping=self.mapping)
            _attach(tree, FILES)

    def _overlay(self) -> None:
        upper, scratch = Path(CHANGES, UPPER), Path(CHANGES, SCRATCH)
        with open_folder(CHANGES) as changes:
            empty_folder(changes)
        for folder in (upper, scratch):
            folder.mkdir()
        # The lower folder is this thread's current one, since the new mount is about to cover its path.
        os.chdir(FILES)
        upper.chmod(stat.S_IMODE(Path().stat().st_mode) | stat.S_IRWXU)
        os.chown(upper, *self.owners.programs)
        folders = f"lowerdir=.,upperdir={upper},workdir={scratch}"
        flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
        call("mount", b"testbed", FILES.encode(), b"overlay", flags, f"{folders},{OVERLAY_OPTIONS}".encode())


def _in_mounts_of(container: ProcessIdentity, act: Callable[[], T]) -> T:
    """Call `act` in a container's mount namespace, and return its result.

    Raises:
        FileNotFoundError: The container has ended.
        Exception: The error that `act` raised.
    """

    def enter_and_act() -> T:
        with (container.folder / "ns/mnt").open("rb") as namespace:
            if not has_own_mounts(container):
                raise FileNotFoundError
            call("unshare", _CLONE_FS)  # from here on, this thread has its own root and current folder
            call("setns", namespace.fileno(), _CLONE_NEWNS)
        return act()

    return in_own_thread(enter_and_act)


def _mount_points(container: ProcessIdentity) -> list[str]:
    """Return a container's mount points in the order in which they were mounted; a path may be there twice.

    The kernel escapes spaces and line feeds in a path, but no spaces or ends of lines that only Unicode has.
    """
    try:
        text = (container.folder / "mountinfo").read_bytes().decode(errors="replace")
    except OSError:
        return []  # it has ended
    escaped = [line.split(" ")[4] for line in text.split("\n") if line]
    return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point) for point in escaped]


def _owners(container: ProcessIdentity) -> Owners:
    found = (container.folder / f"root{FILES}").stat()
    status = dict(line.split(":", 1) for line in (container.folder / "status").read_text().splitlines())
    return Owners((found.st_uid, found.st_gid), (int(status["Uid"].split()[1]), int(status["Gid"].split()[1])))


@contextmanager
def _mapping(owners: Owners) -> Iterator[int]:
    """Yield the descriptor of a user namespace for a mount with mapped owners; -1 if this machine makes none.

    Such a mount shows the folder's owner as the programs' user, that user as the owner, and other users unchanged.
    """
    command = ["unshare", "--user", "sh", "-c", "echo; read _"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            yield -1
            return
        proc = Path(f"/proc/{holder.pid}")
        for kind, mine, theirs in zip(("uid", "gid"), owners.folder, owners.programs, strict=True):
            (proc / f"{kind}_map").write_text(_swapped(mine, theirs))
        with (proc / "ns/user").open("rb") as namespace:
            yield namespace.fileno()


def _swapped(one: int, other: int) -> str:
    """Return the map of a user namespace that swaps two ids and leaves the rest unchanged."""
    low, high = sorted((one, other))
    swaps = [(low, high, 1), (high, low, 1)] if low != high else [(low, low, 1)]
    kept = [(0, low), (low + 1, high), (high + 1, _IDS)]
    ranges = [*swaps, *((start, start, end - start) for start, end in kept if end > start)]
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in sorted(ranges))


@contextmanager
def _cloned(point: str, flags: int = 0) -> Iterator[int]:
    """Yield the descriptor of a copy of a mount, which is not attached yet."""
    tree = _system_call(_OPEN_TREE, _AT_FDCWD, point.encode(), _OPEN_TREE_CLONE | os.O_CLOEXEC | flags)
    try:
        yield tree
    finally:
        os.close(tree)


def _set_attributes(tree: int, attributes: int, flags: int = 0, mapping: int = 0) -> None:
    told = struct.pack("QQQQ", attributes, 0, 0, mapping)
    _system_call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | flags, told, len(told))


def _attach(tree: int, point: str) -> None:
    _system_call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, point.encode(), _MOVE_MOUNT_F_EMPTY_PATH)


def _system_call(number: int, *arguments: int | bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if (result := libc.syscall(ctypes.c_long(number), *words)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
