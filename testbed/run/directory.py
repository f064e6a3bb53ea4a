"""The runs' directories: `runs/<id>/`, and `runs/latest`, a link to the newest."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from errno import ENOENT
from pathlib import Path
from sys import intern
from typing import Any

from testbed.atomic_file import new_folder, remove_empty
from testbed.emulation.process import ProcessIdentity
from testbed.errors import ending_of
from testbed.run.errors import CannotRun
from testbed.sudo import give_back
from testbed.telemetry.store import FORMAT, Records, read_json, read_records, write_json

RUNS = Path("runs")
#: The folder of the records of sweeps, beside the runs. A process that writes a record holds a lock on its folder.
SWEEPS = "sweeps"
#: The file of a record with a row for each run.
SWEEP_ROWS = "runs.jsonl"

#: The form of a run's name; earlier versions gave it no digits.
RUN_ID = re.compile(r".+-\d{8}-\d{6}(?:-[0-9a-f]{4})?")

#: A file that reserves space for the summary of a run whose disk fills up; such a summary takes some 2 KiB.
RESERVE = ".reserve"
RESERVE_BYTES = 64 * 1024

#: The states of a run without a verdict.
GOING_ON, CUT_OFF = "going on", "cut off"


class RunDirectory:
    """The directory of one run. Lines are written at once, so a killed run keeps its records."""

    def __init__(self, experiment: str, root: Path = RUNS) -> None:
        """Make `<root>/<experiment>-<date>-<time>-<four digits>` and point `latest` at it.

        The network has the same name. The digits are random, so that runs which begin in one second differ, also in
        different roots. The directory appears with its manifest in it.

        Raises:
            CannotRun: The directory can't be made; any part of it is removed again.
        """
        began_s = time.time()
        self._records: dict[str, Records] = {}
        self._lock = threading.Lock()
        try:
            with new_folder(root) as self._made:
                fresh = _claimed(root, f"{experiment}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(began_s))}")
                self.id = fresh.name[1:]
                self.path = root / self.id
                try:
                    self._began = {"format": FORMAT, "id": self.id, "experiment": experiment, "started_s": began_s}
                    self._began |= {"process": asdict(ProcessIdentity.own())}
                    _fill(fresh, self._began)
                    fresh.rename(self.path)
                    point_latest_at(self.path)
                except BaseException:
                    for made in (fresh, self.path):
                        shutil.rmtree(made, ignore_errors=True)
                    raise
        except OSError as error:
            why = ending_of(error)[1]
            raise CannotRun(f"the run's directory can't be made: {why}") from error

    def remove_if_empty(self) -> bool:
        """Remove the directory if the run has written nothing into it; return whether it was removed."""
        held = {path.name for path in self.path.rglob("*")} - {RESERVE, "logs", "manifest.json"}
        if held or self.read_whole("manifest.json") != self._began:
            return False
        shutil.rmtree(self.path)
        _lead_to_newest(self.path.parent)
        remove_empty(self._made)
        return True

    def append(self, file: str, record: Mapping[str, Any]) -> None:
        """Append a line to a JSONL file. Any thread may call this.

        Raises:
            OSError: The line can't be written, or the directory was removed before the file's first line.
        """
        with self._lock:
            if file not in self._records:
                if not self.path.is_dir():
                    raise FileNotFoundError(ENOENT, "the run's directory is gone", str(self.path))
                self._records[file] = Records(self.path / file)
            self._records[file].append(record)

    def write(self, file: str, value: Mapping[str, Any]) -> None:
        """Write a whole JSON file. Raises FileNotFoundError where the directory was removed."""
        write_json(self.path / file, value, self.path)

    def read(self, file: str, without: Collection[str] = ()) -> list[dict[str, Any]]:
        """Return the lines of a JSONL file, without some of their keys; empty if there is no such file."""
        records = read_records(self.path / file)
        # Millions of lines share their keys: each would else have texts of its own.
        return [{intern(key): value for key, value in record.items() if key not in without} for record in records]

    def read_whole(self, file: str) -> dict[str, Any] | None:
        """Return the value of a JSON file, or None if there is no such file."""
        path = self.path / file
        return dict(read_json(path)) if path.exists() else None

    def use_reserve(self) -> None:
        """Free the reserved space for the last files that the run writes."""
        (self.path / RESERVE).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files, and give them to the user behind sudo."""
        self.use_reserve()
        for records in self._records.values():
            records.close()
        latest = self.path.parent / "latest"
        give_back([self.path.parent, *([latest] if _leads_to_a_run(latest) else []), self.path, *self.path.rglob("*")])


def point_latest_at(directory: Path) -> None:
    """Point `latest` at a run. A `latest` that is not a link to a run is the user's own, and stays."""
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


def _claimed(root: Path, prefix: str) -> Path:
    """Make an empty folder `.<id>`, to be renamed to `<id>`; the id begins with `prefix`, and no other run has it."""
    while True:
        claimed = root / f".{prefix}-{secrets.token_hex(2)}"
        try:
            claimed.mkdir()
        except FileExistsError:
            continue
        if not (root / claimed.name[1:]).exists():
            return claimed
        claimed.rmdir()


def _fill(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Make the files that a run's directory has from the beginning."""
    (folder / "logs").mkdir()
    with (folder / RESERVE).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
    write_json(folder / "manifest.json", manifest)


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run's directory as `testbed runs` lists it. `began_s` is in Unix seconds."""

    id: str
    path: Path
    experiment: str
    began_s: float
    #: The verdict; for a launch `finished` or `failed`; `going on`; or `cut off` if there is no summary.
    state: str
    bytes: int


class NotRemoved(ValueError):
    """The directory is not a run's, or its run or a sweep with it is still going on; the text says which."""


def past_runs(root: Path = RUNS) -> list[PastRun]:
    """Return the runs in a folder, oldest first."""
    files = root.glob("[!.]*/manifest.json")  # a kill leaves folders whose names begin with a dot
    paths = [file.parent for file in files if not file.parent.is_symlink()]
    return sorted(filter(None, map(_past_run, paths)), key=lambda run: run.began_s)


def remove_run(path: Path) -> PastRun:
    """Remove a run's directory, point `latest` at the newest run that is left, and return the removed run.

    Raises:
        NotRemoved: `path` is not a run's directory, or the run is still going on, or a sweep under way has recorded it.
    """
    run = _past_run(path.resolve())
    if run is None:
        raise NotRemoved(f"{path}: not a run's directory\n    write instead: a name that `testbed runs` lists")
    if run.state == GOING_ON:
        raise NotRemoved(
            f"{path}: the run is still going on\n    write instead: `testbed network clean --name {run.id}` first"
        )
    if sweep := _sweep_under_way(run.path):
        raise NotRemoved(
            f"{path}: the run is in the tables of the sweep {sweep}, which is under way\n"
            "    write instead: the same command, after the sweep has ended"
        )
    shutil.rmtree(run.path)
    _lead_to_newest(run.path.parent)
    return run


def _sweep_under_way(run: Path) -> str | None:
    """Return the name of a sweep that is under way and has recorded a run; None if there is none."""
    for rows in (run.parent / SWEEPS).glob(f"*/{SWEEP_ROWS}"):
        if any(row.get("run") == run.name for row in read_records(rows)) and _is_locked(rows.parent):
            return rows.parent.name
    return None


def _is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a sweep's record."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def _lead_to_newest(root: Path) -> None:
    """Point a `latest` whose run was removed at the newest run in the folder, or remove it if there is none."""
    latest = root / "latest"
    if _leads_to_a_run(latest) and not latest.exists():
        latest.unlink()
        # Not at a run that was renamed: such a link would count as the user's own, and stay.
        if left := [run.path.name for run in past_runs(root) if RUN_ID.fullmatch(run.path.name)]:
            latest.symlink_to(left[-1])


def _past_run(path: Path) -> PastRun | None:
    """Return the run in a directory, or None if it has no manifest of a run."""
    try:
        manifest = read_json(path / "manifest.json")
        id_, experiment = str(manifest.get("id", path.name)), str(manifest["experiment"])
        began_s = float(manifest.get("started_s", path.stat().st_mtime))
        time.localtime(began_s)  # an OverflowError for a time that no calendar has
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    state = _end_state(path)
    # A process may make several runs: one that has its summary is over, although its process goes on.
    state = GOING_ON if state == CUT_OFF and is_going_on(manifest) else state
    return PastRun(id_, path, experiment, began_s, state, _size_of(path))


def _size_of(folder: Path) -> int:
    """Return the bytes that the files below a folder take on the disk. Files may come and go meanwhile."""
    size = 0
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):  # a run that is still going on has renamed it
                size += Path(above, name).lstat().st_blocks * 512
    return size


def _end_state(path: Path) -> str:
    try:
        summary = read_json(path / "summary.json")
        launched = {True: "finished", False: "failed"}.get(summary.get("finished"), CUT_OFF)
        return str(summary.get("verdict") or launched)
    except (OSError, ValueError, TypeError, AttributeError):
        return CUT_OFF


def is_going_on(manifest: Mapping[str, Any]) -> bool:
    """Return whether the process of a manifest's run is alive on this machine; False for manifests of earlier versions.

    The process may have ended this run and make others: a run that has a summary is over.
    """
    try:
        return ProcessIdentity(**manifest["process"]).is_running
    except (KeyError, TypeError):
        return False
