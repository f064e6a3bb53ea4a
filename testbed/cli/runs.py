"""The commands about runs that were made: `report`, `view`, `export` and `runs`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import BAD_INPUT, Json, Port, err, fail, out
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.run.directory import RUNS

RunDirectories = Annotated[list[Path], typer.Argument(metavar="RUN…", help="run directories, such as runs/latest")]

app = typer.Typer()


def report(runs: RunDirectories) -> None:
    """Write the report page of a run, or one page that compares several runs."""
    from testbed.report.opening import ended_early
    from testbed.report.page import write_page, write_side_by_side
    from testbed.report.record import RunRecord

    records = [RunRecord.read(run) for run in runs]
    for record in records:
        for reason in () if record.finished else (*ended_early(record), *record.gaps):
            err.print(f"{record.path} has not finished: {reason}", markup=False)
    typer.echo(write_page(records[0]) if len(runs) == 1 else write_side_by_side(records, Path("runs/comparison.html")))


def view(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run's directory, such as runs/latest")],
    port: Port = None,
) -> None:
    """Play a finished run on a page in your browser, at any speed; Ctrl-C ends it."""
    from testbed.api.entry import ApiPort, show_in_browser, write_entry
    from testbed.api.server import ApiServer
    from testbed.report.recording import RecordedRun

    with tempfile.TemporaryDirectory(prefix="testbed-view-") as folder:
        try:
            with (
                ApiServer(RecordedRun(run, forks=True), Path(folder) / "view.sock", port or 0) as server,
                interruptible(),
            ):
                assert server.port is not None
                page = write_entry(Path(folder), server.port, server.token)
                out.print(show_in_browser(page, ApiPort(server.port, shown=True)))
                server.join()
        except Interrupted:
            return


def export(
    runs: RunDirectories,
    target: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="the folder to write to; default: RUN/export for one run, runs/comparison for several",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            metavar="FORM,…",
            help="comma-separated: png, svg or pdf for figures; csv or parquet for tables; tensorboard for curves; "
            "otlp for rounds and swaps as spans",
        ),
    ] = "svg,csv",
) -> None:
    """Write the figures of one run, or of several in comparison, and their records as tables."""
    from testbed.report.export import FIGURE_FORMS, OTHER_FORMS, TABLE_FORMS, Form
    from testbed.report.export import export as write
    from testbed.report.record import RunRecord

    known: dict[str, Form] = {known: known for known in (*FIGURE_FORMS, *TABLE_FORMS, *OTHER_FORMS)}
    if unknown := [name for name in form.split(",") if name not in known]:
        remedy = f"one or more of {', '.join(known)}, separated by commas"
        raise fail(BAD_INPUT, f"--form {form}: unknown form {unknown[0]!r}\n    write instead: {remedy}")
    target = target or (runs[0] / "export" if len(runs) == 1 else Path("runs/comparison"))
    for file in write([RunRecord.read(run) for run in runs], target, [known[name] for name in form.split(",")]):
        typer.echo(file)


@app.callback(invoke_without_command=True)
def runs(context: typer.Context, json_: Json = False) -> None:
    """List the runs in `runs/`, or remove some; without a command, list them."""
    if context.invoked_subcommand is None:
        list_runs(json_)


@app.command("list")
def list_runs(json_: Json = False) -> None:
    """List the runs in `runs/`, newest last, with start time, verdict and size."""
    from testbed.cli.tables import print_runs
    from testbed.run.directory import past_runs

    found = past_runs()
    if json_:
        typer.echo(json.dumps([{**asdict(run), "path": str(run.path)} for run in found]))
    else:
        print_runs(found)


@app.command()
def rm(
    wanted: Annotated[list[str], typer.Argument(metavar="RUN…", help="names of runs in runs/, or run directories")],
) -> None:
    """Remove runs with all their records; a run that is still going on is refused."""
    from testbed.run.directory import NotRemoved, remove_run

    try:
        for name in wanted:
            run = remove_run(RUNS / name if (RUNS / name / "manifest.json").exists() else Path(name))
            out.print(f"removed {run.path} ({run.bytes / 1e6:.1f} MB)", markup=False)
    except NotRemoved as error:
        raise fail(BAD_INPUT, error) from None
