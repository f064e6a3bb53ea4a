"""`testbed sweep`: many runs of one experiment, those that are missing, as long as it takes.

sweep file  ->  planned runs, less those that the record has whole  --a run each-->  record, and its tables
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from testbed.atomic_file import write_text
from testbed.run.directory import RUNS, give_back
from testbed.run.errors import CannotRun
from testbed.run.execute import Executed
from testbed.run.sweep.comparison import FIGURES, TO_LOSS, Comparison, figures_of
from testbed.run.sweep.planned_run import PlannedRun, Point, combinations, point_at, runs_at
from testbed.spec.errors import Fault, SpecError
from testbed.spec.sweep import Sweep
from testbed.telemetry.store import Records, read_records

#: Runs the experiment in a file, with overrides.
Execute = Callable[[Path, Mapping[str, str]], Executed]


class Watcher(Protocol):
    """Who is told how far many runs are."""

    def begin(self, run: PlannedRun) -> None:
        """A run begins."""

    def end(self, run: PlannedRun, executed: Executed) -> None:
        """It has ended."""

    def lost(self, run: PlannedRun) -> None:
        """The machine that made it is gone; it will be made again."""


#: What watches these runs while it is entered, of which some may be made already.
Watch = Callable[[Comparison], AbstractContextManager[Watcher]]

#: Makes runs of the experiment in a file, here or elsewhere: each as it has ended.
Make = Callable[[Path, Sequence[PlannedRun], Watcher], Iterator[tuple[PlannedRun, Executed]]]


def one_after_another(
    execute: Execute, file: Path, runs: Sequence[PlannedRun], watcher: Watcher
) -> Iterator[tuple[PlannedRun, Executed]]:
    """Make the runs on this machine. One that fails is counted as such, and the others go on; CannotRun when the
    machine can't."""
    for run in runs:
        watcher.begin(run)
        executed = execute(file, run.overrides)
        watcher.end(run, executed)
        yield run, executed


def planned_sweep(sweep: Sweep) -> list[PlannedRun]:
    """The runs that a sweep asks for. SpecError for any bad input: what a point makes wrong is the sweep's fault."""
    spec, file = sweep.spec, sweep.experiment
    points = []
    for labels, overrides in combinations(spec.axes):
        try:
            points.append(point_at(file, labels, overrides))
        except SpecError as error:
            raise _of_the_point(error, sweep, labels) from None
    return runs_at(points, spec.seeds, spec.repeats)


def _of_the_point(error: SpecError, sweep: Sweep, labels: Mapping[str, str]) -> SpecError:
    """The error as the sweep's, unless the experiment has it without any axis too."""
    if not labels:
        return error
    try:
        point_at(sweep.experiment, {}, {})
    except SpecError as own:
        if str(own) == str(error):
            return error
    where = ", ".join(f"{axis} {label}" for axis, label in labels.items())
    faults = [
        Fault("axes", f"at {where}: {error.file}: {fault.field}: {fault.problem}", fault.remedy)
        for fault in error.faults
    ]
    return SpecError(sweep.file, faults)


def make_sweep(sweep: Sweep, resume: bool, make: Make, watch: Watch) -> tuple[Comparison, Path]:
    """Make the runs that are missing, all of them where not to `resume`; all runs, and the folder of the record.

    SpecError for bad input, and without `resume` where the record has runs; CannotRun when this machine can't. What was
    made until then is kept, as after an interruption.
    """
    planned = planned_sweep(sweep)
    with SweepRecord(sweep.spec.name) as record:
        complete = record.complete()
        if complete and not resume:
            rule = f"{sweep.spec.name} has {len(complete)} complete runs already, in {record.folder}"
            raise SpecError(sweep.file, [Fault("name", rule, "`--resume` for those that are missing, or another name")])
        made = {run.key: complete[run.key] for run in planned if run.key in complete}
        missing = [run for run in planned if run.key not in made]
        with watch(Comparison(planned, dict(made))) as watcher:
            for run, executed in make(sweep.experiment, missing, watcher):
                record.add(run, executed)
                made[run.key] = executed
                record.write_tables(Comparison(planned, made))
        record.write_tables(compared := Comparison(planned, made))
    return compared, record.folder


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

    def write_tables(self, compared: Comparison) -> None:
        """Both tables of what was made so far."""
        _write(self.folder / "runs.csv", list(_run_rows(compared)))
        _write(self.folder / "points.csv", [_point_row(compared, point) for point in compared.points])


def _run_rows(compared: Comparison) -> Iterator[dict[str, Any]]:
    for run in compared.planned:
        if run.key in compared.made:
            made = compared.made[run.key]
            figures = figures_of(made) if made.finished else dict.fromkeys(FIGURES)
            figures[TO_LOSS] = compared.seconds_to_loss(run)
            verdict = made.verdict if made.finished else "failed"
            ids = {"seed": run.seed, "repeat": run.repeat, "run": made.directory.name, "verdict": verdict}
            yield {**run.point.labels, **ids, **figures}


def _point_row(compared: Comparison, point: Point) -> dict[str, Any]:
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
