"""The commands that run an experiment many times: `compare` and `sweep`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from testbed.cli.console import (
    FAILED,
    ExperimentFile,
    Open,
    Port,
    Quiet,
    api_port,
    bad_input,
    err,
    need_root,
    out,
    progress_display,
)
from testbed.cli.container_options import Renew, renew_images
from testbed.cli.experiment import Set, Strict, interruptible_run, need_root_for, overrides, page
from testbed.emulation.errors import ending_of
from testbed.sudo import give_back

if TYPE_CHECKING:
    from testbed.run.execute import Executed
    from testbed.run.sweep.comparison import Comparison
    from testbed.run.sweep.planned_run import PlannedRun
    from testbed.run.sweep.sweep import Make, Watcher
    from testbed.run.terminal.display import Display


ComparisonJson = Annotated[
    bool, typer.Option("--json", help="print one JSON object; progress goes to the error output")
]
On = Annotated[
    Literal["ray"] | None,
    typer.Option("--on", help="spread the runs over the hosts of the cluster that is up; default: this machine"),
]


def compare(
    experiment: ExperimentFile,
    policies: Annotated[
        str, typer.Option(metavar="POLICY,…", help="policies to compare, with options: netstorm:roots=1,mst")
    ],
    seeds: Annotated[str, typer.Option(metavar="N,…", help="seeds to run each policy with, such as 1,2,3")] = "1",
    set_: Set = [],  # noqa: B006
    strict: Strict = False,
    quiet: Quiet = False,
    json_: ComparisonJson = False,
    open_: Open = False,
    port: Port = None,
    on: On = None,
) -> None:
    """Run an experiment under several policies, with the same seeds and traces, and compare the figures."""
    from testbed.cli.sweep_progress import SweepProgress
    from testbed.cli.tables import print_comparison
    from testbed.run.sweep.comparison import Comparison
    from testbed.run.sweep.planned_run import Variant, planned_comparison

    changes = overrides(set_)
    _check_page(on, open_, port)
    try:
        variants = Variant.parse_list(policies)
    except ValueError as error:
        raise bad_input(f"--policies: {error}", "--policies netstorm:roots=1,mst") from None
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise bad_input(f"--seeds {seeds}: a seed is not a whole number", "--seeds 1,2,3") from None
    display = progress_display(quiet, beside_output=json_, port=api_port(open_, port))
    with _interruptible(on):
        if on is None:
            need_root_for(experiment, changes)
        planned = planned_comparison(experiment, variants, numbers, changes)
        with SweepProgress(display.console, Comparison(planned, {})) as progress:
            made = {run.key: done for run, done in _make(on, strict, display)(experiment, planned, progress)}
        compared = Comparison(planned, made)
        # The results come first: no error of the page may hide them.
        if json_:
            typer.echo(json.dumps({point.labels["policy"]: compared.outcome(point) for point in compared.points}))
        else:
            print_comparison(compared)
        side_by_side = _side_by_side(compared)
    if not json_:
        if side_by_side is not None:
            out.print(f"  comparison: {side_by_side}", markup=False)
        if finished := _finished(compared):
            out.print(f"  as CSV: testbed export {' '.join(map(str, finished))} --form csv", markup=False)
    _exit(compared, strict)
    if side_by_side is None:
        raise typer.Exit(FAILED)


def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP", help="the sweep file, which names an experiment and its axes")
    ],
    set_: Set = [],  # noqa: B006
    resume: Annotated[bool, typer.Option("--resume", help="make only the runs that are not complete yet")] = False,
    strict: Strict = False,
    quiet: Quiet = False,
    json_: ComparisonJson = False,
    open_: Open = False,
    port: Port = None,
    on: On = None,
    renew: Renew = False,
) -> None:
    """Run an experiment at every combination of a sweep's values, with every seed, as often as the file says."""
    from testbed.cli.sweep_progress import SweepProgress
    from testbed.cli.tables import print_comparison
    from testbed.run.sweep.sweep import make_sweep, planned_sweep
    from testbed.spec.sweep import Sweep

    if renew and on is not None:
        rule = "--renew-image: can't be given with --on, since each host builds the images of its own runs"
        raise bad_input(rule, "versions in the image's file, which all hosts then install")
    changes = overrides(set_)
    _check_page(on, open_, port)
    display = progress_display(quiet, beside_output=json_, port=api_port(open_, port))
    with _interruptible(on):
        loaded = Sweep.load(file)
        if on is None and os.geteuid() != 0:
            planned_sweep(loaded, changes)  # wrong input first
            need_root()
        make = _make(on, strict, display, renew)
        compared, folder = make_sweep(
            loaded, resume, make, lambda planned: SweepProgress(display.console, planned), changes
        )
    if json_:
        points = [{"axes": dict(point.labels), **compared.outcome(point)} for point in compared.points]
        typer.echo(json.dumps({"sweep": loaded.spec.name, "directory": str(folder), "points": points}))
    else:
        print_comparison(compared)
        out.print(f"  figures: {folder}/points.csv; of each run: {folder}/runs.csv", markup=False)
    _exit(compared, strict)


def _check_page(on: On, open_: bool, port: int | None) -> None:
    if on is not None and (open_ or port is not None):
        rule = "--open and --port: can't be given with --on, since the runs are on other machines"
        raise bad_input(rule, "`testbed view RUN` for a run that has ended")


def _interruptible(on: On) -> AbstractContextManager[None]:
    stopped = "no run was under way" if on is None else "the runs on the hosts were cancelled"
    return interruptible_run(without_records=f"{stopped}; those that had ended are in runs/")


def _make(on: On, strict: bool, display: Display, renew: bool = False) -> Make:
    """Return the function that makes runs: one after another on this machine, or on the hosts of a cluster.

    With `renew`, this machine builds the runs' images again before the first run, so all runs have the same images.
    """
    if on is not None:
        from testbed.scaleout.sweep_on_ray import OnRay

        return OnRay(strict)
    from testbed.run.execute import execute
    from testbed.run.sweep.sweep import one_after_another
    from testbed.spec.experiment import Experiment

    def made(file: Path, changes: Mapping[str, str]) -> Executed:
        return execute(file, changes, strict, page, display)

    def make(file: Path, runs: Sequence[PlannedRun], watcher: Watcher) -> Iterator[tuple[PlannedRun, Executed]]:
        if renew and runs:
            points = {run.point.hash: run for run in runs}
            renew_images([Experiment.load(file, run.overrides) for run in points.values()], display)
        yield from one_after_another(made, file, runs, watcher)

    return make


def _side_by_side(compared: Comparison) -> Path | None:
    """Write the page of the finished runs, and return its path; None if no run finished, or it can't be written."""
    from testbed.report.page import write_comparison
    from testbed.report.record import RunRecord

    finished = _finished(compared)
    try:
        records = [RunRecord.read(run) for run in finished]
        if not finished:
            return None
        page = write_comparison(records, finished[-1].parent / "comparison.html")
        give_back([page])
        return page
    except Exception as error:
        err.print(f"no comparison page: {ending_of(error)[1]}", markup=False)
        return None


def _finished(compared: Comparison) -> list[Path]:
    return [run.directory for point in compared.points for run in compared.at(point) if run.finished]


def _exit(compared: Comparison, strict: bool) -> None:
    if not compared.finished or (strict and not compared.trusted):
        raise typer.Exit(FAILED)
