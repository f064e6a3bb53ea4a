"""The command line: parses, calls, and turns what went wrong into words and an exit code.

Exit codes: 0 done; 1 the run failed, or its verdict is `suspect` under --strict; 2 bad input; 3 this machine can't.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import (
    certificates,
    check,
    cluster,
    compare,
    doctor,
    experiment,
    export,
    launch,
    network,
    new,
    plan,
    runs,
    schema,
    standing,
    topology,
    trace,
    up,
    view,
    worker,
)
from testbed.cli.console import BAD_INPUT as BAD_INPUT
from testbed.cli.console import CANNOT as CANNOT
from testbed.cli.console import FAILED, Verbs, err
from testbed.resources import __version__

app = typer.Typer(cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
experiment.register(app)
compare.register(app)
app.add_typer(trace.app, name="trace")
app.add_typer(topology.app, name="topology")
app.add_typer(cluster.app, name="cluster")
app.add_typer(worker.app, name="worker")
app.add_typer(runs.app, name="runs")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"testbed {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Take the options that stand before a verb."""


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="run directories")]) -> None:
    """Make the page of a run, or one of several runs side by side."""
    from testbed.report.opening import ended_early
    from testbed.report.page import write_page, write_side_by_side
    from testbed.report.record import RunRecord

    records = [RunRecord.read(run) for run in runs]
    for record in records:
        for reason in () if record.finished else (*ended_early(record), *record.gaps):
            err.print(f"{record.path} has not finished: {reason}", markup=False)
    typer.echo(write_page(records[0]) if len(runs) == 1 else write_side_by_side(records, Path("runs/comparison.html")))


doctor.register(app)
up.register(app)
view.register(app)
network.register(app)
standing.register(app)
launch.register(app)
plan.register(app)
certificates.register(app)
new.register(app)
export.register(app)
check.register(app)
schema.register(app)


def main() -> None:
    """The entry point."""
    try:
        app()
    except BrokenPipeError:
        sys.exit(FAILED)
