"""`testbed runs`: the runs that were made here, with their verdicts and sizes, and their removal."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import BAD_INPUT, fail, out
from testbed.cli.standing import Json
from testbed.run.directory import RUNS

app = typer.Typer(help=__doc__)


@app.callback(invoke_without_command=True)
def runs(context: typer.Context, json_: Json = False) -> None:
    """List the runs in `runs/`, the newest last: when each began, its verdict, and its size on the disk."""
    from testbed.cli.tables import print_runs
    from testbed.run.directory import past_runs

    if context.invoked_subcommand is not None:
        return
    found = past_runs()
    if json_:
        typer.echo(json.dumps([{**asdict(run), "path": str(run.path)} for run in found]))
    else:
        print_runs(found)


@app.command()
def rm(
    wanted: Annotated[list[str], typer.Argument(metavar="RUN…", help="names of runs, or their directories")],
) -> None:
    """Remove runs with all their records. A run that goes on is left as it is."""
    from testbed.run.directory import NotRemoved, remove_run

    try:
        for name in wanted:
            run = remove_run(RUNS / name if (RUNS / name / "manifest.json").exists() else Path(name))
            out.print(f"{run.path} is removed, of {run.bytes / 1e6:.1f} MB", markup=False)
    except NotRemoved as error:
        raise fail(BAD_INPUT, error) from None
