"""`testbed sweep`: makes the runs of one experiment that its record lacks.

sweep file  ->  planned runs without those complete in the record  --one run each-->  record and tables

The record is `runs/sweeps/<name>/`, beside the directories of the runs:

runs.jsonl   a line for each run that ended, also for a failed one
runs.csv     a row for each planned run that was made, with its figures
points.csv   a row for each combination of the axes' points: medians over its seeds and repeats, least and most
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol

from testbed.atomic_file import new_folder, remove_empty, write_text
from testbed.run.conclusion.baseline import NoSummary
from testbed.run.directory import RUNS, SWEEP_ROWS, SWEEPS
from testbed.run.errors import CannotRun, RunFailed
from testbed.run.execute import Executed
from testbed.run.sweep.comparison import FIGURES, TO_LOSS, Comparison, figures_of
from testbed.run.sweep.planned_run import PlannedRun, Point, combinations, point_at, runs_at
from testbed.spec.errors import Fault, SpecError
from testbed.spec.load import is_part
from testbed.spec.sweep import Sweep
from testbed.spec.units import count
from testbed.sudo import give_back
from testbed.telemetry.store import Records, read_records

#: The tables' own columns. They would overwrite an axis of the same name.
COLUMNS = frozenset(
    (
        *("seed", "repeat", "run", "verdict", "runs", "trusted", "suspect", "failed"),
        *(f"{name}{end}" for name in (*FIGURES, TO_LOSS) for end in ("", "_least", "_most")),
    )
)

#: Runs the experiment in a file, with overrides.
Execute = Callable[[Path, Mapping[str, str]], Executed]


class Watcher(Protocol):
    """Shows the progress of many runs."""

    def begin(self, run: PlannedRun) -> None:
        """Show that a run begins."""

    def end(self, run: PlannedRun, executed: Executed) -> None:
        """Show that a run has ended."""

    def lost(self, reason: str, run: PlannedRun | None) -> None:
        """Show that a host was lost; `reason` names the host. Its `run`, if it had one, is made again."""


#: Opens a watcher of runs, some of which may already be made.
Watch = Callable[[Comparison], AbstractContextManager[Watcher]]

#: Makes runs of the experiment in a file, here or elsewhere, and yields each when it has ended.
Make = Callable[[Path, Sequence[PlannedRun], Watcher], Iterator[tuple[PlannedRun, Executed]]]


def one_after_another(
    execute: Execute, file: Path, runs: Sequence[PlannedRun], watcher: Watcher
) -> Iterator[tuple[PlannedRun, Executed]]:
    """Make the runs on this machine, one after the other. After a failed run, the others go on.

    Raises:
        CannotRun: This machine can't run the experiment.
    """
    for run in runs:
        watcher.begin(run)
        executed = execute(file, run.overrides)
        watcher.end(run, executed)
        yield run, executed


def planned_sweep(sweep: Sweep, overrides: Mapping[str, str] | None = None) -> list[PlannedRun]:
    """Return the runs that a sweep asks for, with `overrides` of the experiment's fields at all points.

    Raises:
        SpecError: The input is wrong. The error names the sweep's file if only a point is wrong.
    """
    spec, file, everywhere = sweep.spec, sweep.experiment, overrides or {}
    taken = [
        Fault(f"axes.{axis}", "the tables have a column of this name", "another name")
        for axis in spec.axes
        if axis in COLUMNS
    ]
    if wrong := [*taken, *_replaced(sweep, everywhere)]:
        raise SpecError(sweep.file, wrong)
    points = []
    for labels, own in combinations(sweep.axes):
        try:
            points.append(point_at(file, labels, {**everywhere, **own}))
        except SpecError as error:
            raise _of_the_point(error, sweep, labels, everywhere) from None
    return runs_at(points, spec.seeds, spec.repeats)


def _replaced(sweep: Sweep, overrides: Mapping[str, str]) -> Iterator[Fault]:
    """Yield a fault for each override that the seeds or an axis of the sweep would replace at every point."""
    for name in overrides:
        if name == "seed":
            yield Fault("seeds", "the sweep sets the seed, as --set seed does", "the seeds in the sweep's file alone")
        for axis, points in sweep.spec.axes.items():
            for field in dict.fromkeys(field for fields in points.values() for field in fields):
                if is_part(name, field):
                    rule = f"the axis sets {field}, as --set {name} does"
                    yield Fault(f"axes.{axis}", rule, "the axis or --set, one of them")


def _of_the_point(error: SpecError, sweep: Sweep, labels: Mapping[str, str], overrides: Mapping[str, str]) -> SpecError:
    """Return a point's error as one of the sweep's file; unchanged if the experiment has it without any axis too."""
    if not labels:
        return error
    try:
        point_at(sweep.experiment, {}, overrides)
    except SpecError as own:
        if str(own) == str(error):
            return error
    where = ", ".join(f"{axis} {label}" for axis, label in labels.items())
    faults = [
        Fault("axes", f"at {where}: {error.file}: {fault.field}: {fault.problem}", fault.remedy)
        for fault in error.faults
    ]
    return SpecError(sweep.file, faults)


def make_sweep(
    sweep: Sweep, resume: bool, make: Make, watch: Watch, overrides: Mapping[str, str] | None = None
) -> tuple[Comparison, Path]:
    """Make the missing runs of a sweep, and return all its runs with the record's folder.

    The runs that were made are kept after an interruption or an error. `resume` continues a record that has complete
    runs. `overrides` are values of the experiment's fields at all points, by dotted names.

    Raises:
        SpecError: The input is wrong, or the record has complete runs and `resume` is not set.
        CannotRun: This machine can't run the experiment.
        RunFailed: The record's folder was removed meanwhile.
    """
    planned = planned_sweep(sweep, overrides)
    with SweepRecord(sweep.spec.name) as record:
        complete = record.complete()
        if complete and not resume:
            rule = f"{sweep.spec.name} already has {count(len(complete), 'complete run')} in {record.folder}"
            raise SpecError(sweep.file, [Fault("name", rule, "`--resume` to make the missing runs, or another name")])
        made = {run.key: complete[run.key] for run in planned if run.key in complete}
        missing = [run for run in planned if run.key not in made]
        with watch(Comparison(planned, dict(made))) as watcher:
            for run, executed in make(sweep.experiment, missing, watcher):
                record.add(run, executed)
                made[run.key] = executed
                record.write_tables(Comparison(planned, made))
        record.write_tables(comparison := Comparison(planned, made))
    return comparison, record.folder


class SweepRecord:
    """The record of a sweep, open in one process at a time.

    Raises:
        CannotRun: The record's folder can't be made, or another process has the record open.
    """

    def __init__(self, name: str, root: Path = RUNS) -> None:
        self._root = root
        self.folder = root / SWEEPS / name
        self._rows = self.folder / SWEEP_ROWS
        self._records: Records | None = None  # opened with the first row: a sweep without a run leaves no file
        try:
            with new_folder(self.folder) as self._made:
                self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not os.access(self._rows if self._rows.exists() else self.folder, os.W_OK):
                        read_only = os.statvfs(self.folder).f_flag & os.ST_RDONLY
                        raise OSError(number := errno.EROFS if read_only else errno.EACCES, os.strerror(number))
                except BaseException:
                    os.close(self._lock)
                    raise
        except BlockingIOError:
            raise CannotRun(f"another sweep is writing to {self.folder}; wait until it ends, or stop it") from None
        except OSError as error:
            why = f"{self.folder} can't be made: {error.strerror}; run the sweep in a folder that you can write to"
            raise CannotRun(why) from error

    def __enter__(self) -> SweepRecord:
        return self

    def __exit__(self, *_: object) -> None:
        if self._records is not None:
            self._records.close()
        inside = self.folder.iterdir() if self.folder.is_dir() else ()
        give_back([self._root, self.folder.parent, self.folder, *inside])
        remove_empty(self._made)
        os.close(self._lock)

    def add(self, run: PlannedRun, executed: Executed) -> None:
        """Add a run that has ended. Raises RunFailed if the record's folder was removed."""
        if not self.folder.is_dir():
            raise RunFailed(f"{self.folder} is gone: it was removed while the sweep went on")
        self._records = self._records or Records(self._rows)
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
        """Return the first complete run of each key, by key. Runs whose directory was removed do not count."""
        found: dict[str, Executed] = {}
        for line in read_records(self._rows):
            directory = self._root / line["run"]
            if line["finished"] and (directory / "summary.json").exists():
                found.setdefault(line["key"], Executed(True, line["verdict"], directory))
        return found

    def write_tables(self, comparison: Comparison) -> None:
        """Write both tables of the runs made so far."""
        _write(self.folder / "runs.csv", list(_run_rows(comparison)))
        _write(self.folder / "points.csv", [_point_row(comparison, point) for point in comparison.points])


def _run_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for run in comparison.planned:
        if run.key in comparison.made:
            made = comparison.made[run.key]
            figures: dict[str, float | None] = dict.fromkeys(FIGURES)
            with suppress(NoSummary):  # removed or damaged meanwhile
                figures = figures_of(made) if made.finished else figures
            figures[TO_LOSS] = comparison.seconds_to_loss(run)
            verdict = made.verdict if made.finished else "failed"
            ids = {"seed": run.seed, "repeat": run.repeat, "run": made.directory.name, "verdict": verdict}
            yield {**run.point.labels, **ids, **figures}


def _point_row(comparison: Comparison, point: Point) -> dict[str, Any]:
    figures = comparison.outcome(point)
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
