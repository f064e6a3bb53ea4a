"""The verbs that run an experiment: `run` and `simulate`."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.console import (
    BAD_INPUT,
    FAILED,
    Open,
    Port,
    Quiet,
    door,
    err,
    fail,
    interruptible_verb,
    out,
    progress_display,
)

if TYPE_CHECKING:
    from testbed.run.execute import Executed

Experiment = Annotated[Path, typer.Argument(help="the experiment file")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a field")]
Strict = Annotated[bool, typer.Option("--strict", help="refuse what does not fit; a suspect verdict is 1")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(run)
    app.command()(simulate)


def overrides(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs of --set."""
    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise fail(BAD_INPUT, f"--set {pair}: is not key=value\n    write instead: --set train.rounds=20")
    return dict(pair.split("=", 1) for pair in pairs)


def run(
    experiment: Experiment,
    set_: Set = [],  # noqa: B006
    strict: Strict = False,
    quiet: Quiet = False,
    json_: Annotated[bool, typer.Option("--json", help="its summary as one JSON object; progress goes aside")] = False,
    open_: Open = False,
    port: Port = None,
    hosts: Annotated[
        str | None, typer.Option("--hosts", metavar="all|A,B", help="split the network over these of the hosts file")
    ] = None,
    hosts_file: Annotated[Path, typer.Option("--hosts-file", help="the hosts file")] = Path("hosts.yaml"),
) -> None:
    """Run an experiment: build the network, train, change it as the file says, and judge."""
    from testbed.run.execute import execute
    from testbed.scaleout.split.choice import run_on

    changes = overrides(set_)
    if hosts is not None:
        changes["hosts"] = hosts if hosts == "all" else f"[{hosts}]"
    with interruptible_run():
        display = progress_display(quiet, beside_output=json_, door=door(open_, port))
        outcome = execute(experiment, changes, strict, page, display, run_on(hosts_file, strict))
    if json_ or quiet:
        _tell(outcome, json_)
    if not outcome.finished or outcome.page is None or (strict and outcome.verdict != "trusted"):
        raise typer.Exit(FAILED)


def simulate(
    experiment: Experiment,
    set_: Set = [],  # noqa: B006
    seed: Annotated[
        int | None, typer.Option(min=0, help="of all that is drawn at random; the file's by default")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="how many; as the file says by default")] = None,
    gradients: Annotated[bool, typer.Option("--gradients", help="train for real, in one process")] = False,
) -> None:
    """Simulate an experiment: rounds, re-planning and events on simulated time, with the same run directory."""
    from testbed.run.terminal.display import Display
    from testbed.simulation.execute import simulate as simulated

    changes = overrides(set_)
    changes |= {"seed": str(seed)} if seed is not None else {}
    changes |= {"train.rounds": str(rounds)} if rounds is not None else {}
    with interruptible_run():
        outcome = simulated(experiment, changes, gradients, page, Display())
    if not outcome.finished:
        raise typer.Exit(FAILED)


def _tell(outcome: Executed, as_json: bool) -> None:
    """What a run came to, where its progress was not shown or goes aside."""
    file = outcome.directory / "summary.json"  # not there where the disk is full
    summary = json.loads(file.read_text()) if file.exists() else {"verdict": outcome.verdict, "reasons": []}
    if as_json:
        print(json.dumps({**summary, "directory": str(outcome.directory)}))
        return
    for reason in summary["reasons"]:
        err.print(f"{'suspect' if outcome.finished else 'failed'}: {reason}", markup=False)
    out.print(f"{outcome.verdict}: {outcome.page or outcome.directory}", markup=False)


def page(run: Path) -> Path:
    """Of a run that is over: what draws it takes a second to load."""
    from testbed.report.page import write_report

    return write_report(run)


def interruptible_run() -> AbstractContextManager[None]:
    """Let signals interrupt a run."""
    return interruptible_verb(": everything the run made was taken away")
