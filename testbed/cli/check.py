"""`testbed check`: whether a run passes, for continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import FAILED, err, out, quantity
from testbed.spec.units import Loss


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(check)


def check(
    run: Annotated[Path, typer.Argument(help="a run's directory, or its summary.json")],
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the summary.json of an earlier run, to compare rounds with")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(parser=quantity(Loss), metavar="PART", help="by which rounds may be longer: 10%")
    ] = 0.1,
) -> None:
    """Say whether a run passes: its verdict is `trusted`, and its rounds are no longer than a baseline's."""
    from testbed.run.conclusion.baseline import read_summary, round_seconds, shortfalls

    summary = read_summary(run)
    earlier = None if baseline is None else read_summary(baseline)
    found = shortfalls(summary, earlier, tolerance)
    for one in found:
        err.print(one, markup=False)
    if found:
        raise typer.Exit(FAILED)
    seconds, before = round_seconds(summary), earlier and round_seconds(earlier)
    times = f"; a round took {seconds:.3g} s at the median" if seconds is not None else ""
    out.print(f"passed: {summary['verdict']}{times}{f', the baseline {before:.3g} s' if before else ''}", markup=False)
