"""What is kept of a sweep beside the directories of its runs: `runs/sweeps/<name>/`.

runs.jsonl   a line for each run that ended, whatever ended it, as it did
runs.csv     a row for each planned run that was made, with its figures
points.csv   a row for each combination of the axes' points: medians over its seeds and repeats, least and most
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from testbed.atomic_file import write_text
from testbed.run.directory import RUNS, give_back
from testbed.run.errors import CannotRun
from testbed.run.execute import Executed
from testbed.run.sweep.compared import FIGURES, TO_LOSS, Compared, figures_of
from testbed.run.sweep.planned_run import PlannedRun, Point
from testbed.telemetry.store import Records, read_records

FOLDER = "sweeps"


class SweepRecord:
    """The record of the sweep of a name, for one process at a time."""

    def __init__(self, name: str, root: Path = RUNS) -> None:
        """CannotRun when it can't be written, or another process has it."""
        self._root = root
        self.folder = root / FOLDER / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise CannotRun(f"{self.folder} can't be made: {error.strerror}; call it where you may write") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise CannotRun(f"another sweep is at work in {self.folder}; wait for its end, or end it") from None
        self._records = Records(self.folder / "runs.jsonl")

    def __enter__(self) -> SweepRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._records.close()
        give_back([self._root, self.folder.parent, self.folder, *self.folder.iterdir()])
        os.close(self._lock)

    def add(self, run: PlannedRun, executed: Executed) -> None:
        """A run that has ended."""
        self._records.append(
            {
                "key": run.key,
                "axes": run.point.labels,
                "seed": run.seed,
                "repeat": run.repeat,
                "run": executed.directory.name,
                "finished": executed.finished,
                "verdict": executed.verdict,
            }
        )

    def complete(self) -> dict[str, Executed]:
        """The first complete run of each key, of all sittings; one whose directory was taken away does not count."""
        found: dict[str, Executed] = {}
        for line in read_records(self.folder / "runs.jsonl"):
            directory = self._root / line["run"]
            if line["finished"] and (directory / "summary.json").exists():
                found.setdefault(line["key"], Executed(True, line["verdict"], directory))
        return found

    def write_tables(self, compared: Compared) -> None:
        """Both tables of what was made so far."""
        _write(self.folder / "runs.csv", list(_run_rows(compared)))
        _write(self.folder / "points.csv", [_point_row(compared, point) for point in compared.points])


def _run_rows(compared: Compared) -> Iterator[dict[str, Any]]:
    for run in compared.planned:
        if run.key in compared.made:
            made = compared.made[run.key]
            figures = figures_of(made) if made.finished else dict.fromkeys(FIGURES)
            figures[TO_LOSS] = compared.seconds_to_loss(run)
            verdict = made.verdict if made.finished else "failed"
            ids = {"seed": run.seed, "repeat": run.repeat, "run": made.directory.name, "verdict": verdict}
            yield {**run.point.labels, **ids, **figures}


def _point_row(compared: Compared, point: Point) -> dict[str, Any]:
    figures = compared.outcome(point)
    verdicts = figures["verdicts"]
    counts = {"runs": len(verdicts)} | {each: verdicts.count(each) for each in ("trusted", "suspect", "failed")}
    row: dict[str, Any] = {**point.labels, **counts}
    for name in (*FIGURES, TO_LOSS):
        known = [value for value in figures["spread"][name] if value is not None]
        row |= {
            name: figures[name],
            f"{name}_least": min(known, default=None),
            f"{name}_most": max(known, default=None),
        }
    return row


def _write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(file, text.getvalue())
