"""The command line: parses, calls, and turns what went wrong into words and an exit code.

Exit codes: 0 done; 1 the run failed, or its verdict is `suspect` under --strict; 2 bad input; 3 this machine can't.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import network, topology, trace
from testbed.cli.console import BAD_INPUT, CANNOT, FAILED, INTERRUPTED, fail
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.spec.errors import SpecError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(trace.app, name="trace")
app.add_typer(topology.app, name="topology")


def overrides(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs of --set."""
    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise fail(BAD_INPUT, f"--set {pair}: is not key=value\n    write instead: --set train.rounds=20")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command()
def run(
    experiment: Annotated[Path, typer.Argument(help="the experiment file")],
    set_: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a field")] = [],  # noqa: B006
    strict: Annotated[bool, typer.Option("--strict", help="refuse what does not fit; a suspect verdict is 1")] = False,
) -> None:
    """Run an experiment: build the network, train, change it as the file says, and judge."""
    from testbed.report.page import write_report
    from testbed.run.errors import CannotRun
    from testbed.run.execute import execute

    try:
        with interruptible():
            outcome = execute(experiment, overrides(set_), strict, write_report)
    except SpecError as error:
        raise fail(BAD_INPUT, error) from None
    except CannotRun as error:
        raise fail(CANNOT, error) from None
    except Interrupted as signal_:
        raise fail(INTERRUPTED, f"interrupted ({signal_}): everything the run made was taken away") from None
    if not outcome.finished or (strict and outcome.verdict != "trusted"):
        raise typer.Exit(FAILED)


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="run directories")]) -> None:
    """Make the page of a run, or one of several runs side by side."""
    from testbed.report.page import write_comparison, write_report
    from testbed.report.record import NotARun

    try:
        page = write_report(runs[0]) if len(runs) == 1 else write_comparison(runs, Path("runs/comparison.html"))
    except NotARun as error:
        raise fail(BAD_INPUT, error) from None
    typer.echo(page)


@app.command()
def doctor(json_: Annotated[bool, typer.Option("--json", help="for programs")] = False) -> None:
    """Say what this machine can do, which shaping backend it gets, and what to install for more."""
    from testbed.emulation.doctor import examine, show

    findings = examine()
    show(findings, json_)
    if any(finding.blocks for finding in findings):
        raise typer.Exit(CANNOT)


network.register(app)


def main() -> None:
    """The entry point."""
    try:
        app()
    except BrokenPipeError:
        sys.exit(FAILED)
