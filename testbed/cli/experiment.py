"""The verbs that run an experiment: `run` and `simulate`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.console import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    ExperimentFile,
    Open,
    Port,
    Quiet,
    api_port,
    err,
    fail,
    list_presets,
    out,
    progress_display,
)
from testbed.emulation.interrupt import Interrupted, interruptible

if TYPE_CHECKING:
    from testbed.run.execute import Executed

Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a field")]
Strict = Annotated[bool, typer.Option("--strict", help="refuse what does not fit; a suspect verdict is 1")]


presets_app = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(run)
    app.command()(simulate)
    app.add_typer(presets_app, name="experiment")


@presets_app.callback()
def experiment_group() -> None:
    """Name the experiments that come with the testbed."""


@presets_app.command("list")
def list_() -> None:
    """List the presets, each with its first line; `testbed run NAME` runs one, `testbed simulate NAME` simulates it."""
    list_presets("experiment")


def overrides(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs of --set."""
    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise fail(BAD_INPUT, f"--set {pair}: is not key=value\n    write instead: --set train.rounds=20")
    return dict(pair.split("=", 1) for pair in pairs)


def need_root_for(experiment: Path, changes: dict[str, str]) -> None:
    """Exit for a user who is not root, once the experiment is known to be right: it makes networks and containers."""
    from testbed.cli.standing import need_root
    from testbed.spec.experiment import Experiment

    if os.geteuid() != 0:
        Experiment.load(experiment, changes)
        need_root()


def run(
    experiment: ExperimentFile,
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
    from testbed.scaleout.split.run import run_on

    changes = overrides(set_)
    if hosts is not None:
        changes["hosts"] = hosts if hosts == "all" else f"[{hosts}]"
    with interruptible_run():
        need_root_for(experiment, changes)
        display = progress_display(quiet, beside_output=json_, port=api_port(open_, port))
        outcome = execute(experiment, changes, strict, page, display, run_on(hosts_file, strict))
    if json_ or quiet:
        _tell(outcome, json_)
    if not outcome.finished or outcome.page is None or (strict and outcome.verdict != "trusted"):
        raise typer.Exit(FAILED)


def simulate(
    experiment: ExperimentFile,
    set_: Set = [],  # noqa: B006
    seed: Annotated[
        int | None, typer.Option(min=0, help="of all that is drawn at random; the file's by default")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="how many; as the file says by default")] = None,
    gradients: Annotated[bool, typer.Option("--gradients", help="train for real, in one process")] = False,
) -> None:
    """Simulate an experiment: rounds, re-planning and events on simulated time, with the same run directory."""
    from testbed.run.terminal.display import Display
    from testbed.simulation.simulate import simulate as simulated

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


@contextmanager
def interruptible_run() -> Iterator[None]:
    """Let signals interrupt a run; the program then ends with the place of the records."""
    try:
        with interruptible():
            yield
    except Interrupted as signal_:
        raise fail(INTERRUPTED, _interrupted(signal_)) from None


def _interrupted(signal_: Interrupted) -> str:
    """Return what is left of a run that a signal ended: its records and their page."""
    if signal_.records is None:
        return f"interrupted ({signal_}): nothing was left"
    page = f", their page is {signal_.page}" if signal_.page else ""
    return f"interrupted ({signal_}): the network was taken away; records are in {signal_.records}{page}"
