"""`testbed sweep`: many runs of one experiment, those that are missing, as long as it takes.

sweep file  ->  planned runs, less those that the record has whole  --a run each-->  record, and its tables
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from testbed.run.execute import Executed
from testbed.run.sweep.compared import Compared
from testbed.run.sweep.planned_run import PlannedRun, combinations, point_at, runs_at
from testbed.run.sweep.record import SweepRecord
from testbed.spec.errors import Fault, SpecError
from testbed.spec.sweep import Sweep

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
Watch = Callable[[Compared], AbstractContextManager[Watcher]]

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


def make_sweep(sweep: Sweep, resume: bool, make: Make, watch: Watch) -> tuple[Compared, Path]:
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
        with watch(Compared(planned, dict(made))) as watcher:
            for run, executed in make(sweep.experiment, missing, watcher):
                record.add(run, executed)
                made[run.key] = executed
                record.write_tables(Compared(planned, made))
        record.write_tables(compared := Compared(planned, made))
    return compared, record.folder
