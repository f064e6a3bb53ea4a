"""A run's directory: `runs/<id>/`, and `runs/latest` that points to the newest."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.emulation.process import ProcessIdentity
from testbed.errors import ending_of
from testbed.run.errors import CannotRun
from testbed.telemetry.store import Records, read_records, write_json

RUNS = Path("runs")

#: The form of a run's name; earlier versions gave it no digits.
RUN_ID = re.compile(r".+-\d{8}-\d{6}(?:-[0-9a-f]{4})?")

#: Room that is kept for the summary of a run whose disk gets full: such a summary takes some 2 KiB.
RESERVE = ".reserve"
RESERVE_BYTES = 64 * 1024

#: The states of a run that has no verdict.
GOING_ON, CUT_OFF = "going on", "cut off"


class RunDirectory:
    """Where one run writes. Lines are written as they come, so a killed run leaves what it had."""

    def __init__(self, experiment: str, root: Path = RUNS) -> None:
        """Make `<root>/<experiment>-<date>-<time>-<four digits>` and point `latest` at it.

        Its name is the network's as well. The digits are random: runs that begin in the same second, here or in another
        root, are two. Whenever the directory is there, its manifest is.

        Raises:
            CannotRun: The directory can't be made; then nothing is left of it.
        """
        began_s = time.time()
        self._records: dict[str, Records] = {}
        self._lock = threading.Lock()
        made_root = False
        try:
            made_root = not root.exists()
            fresh = _claimed(root, f"{experiment}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(began_s))}")
            self.id = fresh.name[1:]
            self.path = root / self.id
            try:
                manifest = {"id": self.id, "experiment": experiment, "started_s": began_s, "process": _own_process()}
                _fill(fresh, manifest)
                fresh.rename(self.path)
                _point_latest_at(self.path)
            except BaseException:
                for made in (fresh, self.path):
                    shutil.rmtree(made, ignore_errors=True)
                raise
        except OSError as error:
            if made_root:
                with suppress(OSError):  # another run may be in there by now
                    root.rmdir()
            why = ending_of(error)[1]
            raise CannotRun(f"no directory for the run can be made: {why}") from error

    def append(self, file: str, record: Mapping[str, Any]) -> None:
        """Add a line to a JSONL file; any thread may."""
        with self._lock:
            if file not in self._records:
                self._records[file] = Records(self.path / file)
            self._records[file].append(record)

    def write(self, file: str, value: Mapping[str, Any]) -> None:
        """Write a whole JSON file."""
        write_json(self.path / file, value)

    def read(self, file: str) -> list[dict[str, Any]]:
        """The lines of a JSONL file; none when it was never written."""
        return list(read_records(self.path / file))

    def read_whole(self, file: str) -> dict[str, Any] | None:
        """A whole JSON file; None when it was never written."""
        path = self.path / file
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def use_reserve(self) -> None:
        """Give up the room that was kept: what is written now is the last."""
        (self.path / RESERVE).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files, and give them to the user who called sudo."""
        self.use_reserve()
        for records in self._records.values():
            records.close()
        latest = self.path.parent / "latest"
        give_back([self.path.parent, *([latest] if _leads_to_a_run(latest) else []), self.path, *self.path.rglob("*")])


def give_back(paths: Iterable[Path]) -> None:
    """Give files to the user who called sudo, if one did."""
    if owner := os.environ.get("SUDO_UID"):
        group = int(os.environ.get("SUDO_GID", owner))
        for path in paths:
            with suppress(FileNotFoundError):  # another run points `latest` at itself, or ended with its own
                os.chown(path, int(owner), group, follow_symlinks=False)


def _point_latest_at(directory: Path) -> None:
    """Have `latest` lead to a run. A folder or file of that name, or a link to anything else, is the user's own."""
    latest = directory.parent / "latest"
    if os.path.lexists(latest) and not _leads_to_a_run(latest):
        return
    link = directory.parent / f".{directory.name}.latest"
    try:
        link.symlink_to(directory.name)
        link.replace(latest)
    except BaseException:
        link.unlink(missing_ok=True)
        raise


def _leads_to_a_run(latest: Path) -> bool:
    return latest.is_symlink() and RUN_ID.fullmatch(os.fspath(latest.readlink())) is not None


def _claimed(root: Path, beginning: str) -> Path:
    """An empty folder `.<id>` in which to make what comes to be `<id>`: no other run has that, or makes it."""
    root.mkdir(parents=True, exist_ok=True)
    while True:
        claimed = root / f".{beginning}-{secrets.token_hex(2)}"
        try:
            claimed.mkdir()
        except FileExistsError:
            continue
        if not (root / claimed.name[1:]).exists():
            return claimed
        claimed.rmdir()


def _fill(folder: Path, manifest: Mapping[str, Any]) -> None:
    """What is there from the beginning."""
    (folder / "logs").mkdir()
    with (folder / RESERVE).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
    write_json(folder / "manifest.json", manifest)


def _own_process() -> dict[str, Any]:
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    return asdict(process)


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run's directory: when it began, what it came to, and how large it is."""

    id: str
    path: Path
    experiment: str
    began_s: float
    #: The verdict; `finished` or `failed` of a launch without one; `going on`; `cut off` where there is no summary.
    state: str
    bytes: int


class NotRemoved(ValueError):
    """A directory that is no run's, or that of a run which goes on; the text says which."""


def past_runs(root: Path = RUNS) -> list[PastRun]:
    """Return the runs in a folder, in the order in which they began."""
    paths = [file.parent for file in root.glob("*/manifest.json") if not file.parent.is_symlink()]
    return sorted(filter(None, map(_past_run, paths)), key=lambda run: run.began_s)


def remove_run(path: Path) -> PastRun:
    """Remove a run's directory, and point `latest` at the newest run that is left. Returns what was removed.

    Raises:
        NotRemoved: there is no run in `path`, or it goes on.
    """
    path = path.resolve() if path.is_symlink() else path
    run = _past_run(path)
    if run is None:
        raise NotRemoved(f"{path}: is no run's directory\n    write instead: a name that `testbed runs` lists")
    if run.state == GOING_ON:
        raise NotRemoved(f"{path}: the run goes on\n    write instead: `testbed clean --name {run.id}` first")
    shutil.rmtree(path)
    latest = path.parent / "latest"
    if latest.is_symlink() and not latest.exists():
        latest.unlink()
        if left := past_runs(path.parent):
            latest.symlink_to(left[-1].path.name)
    return run


def _past_run(path: Path) -> PastRun | None:
    """Return the run in a directory; None where its manifest is not one."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        id_, experiment = str(manifest.get("id", path.name)), str(manifest["experiment"])
        began_s = float(manifest.get("started_s", path.stat().st_mtime))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    size = sum(file.lstat().st_blocks * 512 for file in path.rglob("*"))
    return PastRun(id_, path, experiment, began_s, GOING_ON if is_going_on(manifest) else _came_to(path), size)


def _came_to(path: Path) -> str:
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        launched = {True: "finished", False: "failed"}.get(summary.get("finished"), CUT_OFF)
        return str(summary.get("verdict") or launched)
    except (OSError, ValueError, AttributeError):
        return CUT_OFF


def is_going_on(manifest: Mapping[str, Any]) -> bool:
    """Whether the run of a manifest is still at work, on this machine. Those of earlier versions did not say."""
    try:
        return ProcessIdentity(**manifest["process"]).is_running
    except (KeyError, TypeError):
        return False
