"""`testbed export`: what runs came to, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import BAD_INPUT, fail


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(export)


def export(
    runs: Annotated[list[Path], typer.Argument(help="run directories")],
    target: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="where to; RUN/export by default, runs/comparison of several"),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            metavar="FORM,…",
            help="png, svg, pdf: figures; csv, parquet: tables; tensorboard: curves; otlp: rounds and swaps as spans",
        ),
    ] = "svg,csv",
) -> None:
    """Write the figures of a run's page, or of several side by side, and the records as tables."""
    from testbed.report.export import FIGURE_FORMS, OTHER_FORMS, TABLE_FORMS, Form
    from testbed.report.export import export as write
    from testbed.report.record import RunRecord

    known: dict[str, Form] = {known: known for known in (*FIGURE_FORMS, *TABLE_FORMS, *OTHER_FORMS)}
    if unknown := [name for name in form.split(",") if name not in known]:
        remedy = f"some of {', '.join(known)}, commas between"
        raise fail(BAD_INPUT, f"--form {form}: no form {unknown[0]!r}\n    write instead: {remedy}")
    target = target or (runs[0] / "export" if len(runs) == 1 else Path("runs/comparison"))
    for file in write([RunRecord.read(run) for run in runs], target, [known[name] for name in form.split(",")]):
        typer.echo(file)
