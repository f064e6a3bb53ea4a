"""The commands that run one experiment: `run` and `simulate`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.console import (
    FAILED,
    INTERRUPTED,
    ExperimentFile,
    Open,
    Port,
    Quiet,
    api_port,
    bad_input,
    err,
    fail,
    need_root,
    out,
    progress_display,
)
from testbed.cli.container_options import Renew, renew_images
from testbed.emulation.interrupt import Interrupted, interruptible

if TYPE_CHECKING:
    from testbed.run.execute import Executed

Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="override a field of the file, such as train.rounds=20; repeatable"
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="refuse an experiment that exceeds this machine; exit with 1 if the verdict is `suspect`"
    ),
]


def overrides(pairs: list[str], own: Mapping[str, str | int | None] | None = None) -> dict[str, str]:
    """Return the `key=value` texts of --set as a mapping, with the values of the command's own options.

    Exit with bad input for a text without `=`, and for a field that both --set and an option give. `own` maps a field
    to its option's value, or None without one; the option's name is the last part of the field's.
    """
    from testbed.spec.load import is_part

    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise bad_input(f"--set {pair}: is not KEY=VALUE", "--set train.rounds=20")
    changes = dict(pair.split("=", 1) for pair in pairs)
    given = {field: str(value) for field, value in (own or {}).items() if value is not None}
    for field in given:
        if twice := next((key for key in changes if is_part(key, field)), None):
            option = field.rpartition(".")[2]
            raise bad_input(f"--set {twice} and --{option}: can't be given together", "one of them")
    return changes | given


def need_root_for(experiment: Path, changes: dict[str, str]) -> None:
    """Raise SpecError for a wrong experiment; else exit unless the user is root, since only root can make networks."""
    from testbed.spec.experiment import Experiment

    if os.geteuid() != 0:
        Experiment.load(experiment, changes)
        need_root()


def run(
    experiment: ExperimentFile,
    set_: Set = [],  # noqa: B006
    strict: Strict = False,
    quiet: Quiet = False,
    json_: Annotated[
        bool,
        typer.Option("--json", help="print the run's summary as one JSON object; progress goes to the error output"),
    ] = False,
    open_: Open = False,
    port: Port = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            metavar="all|A,B",
            help="split the network over all hosts of the hosts file, or over those named; default: the experiment's "
            "`hosts`, or else this machine alone",
        ),
    ] = None,
    hosts_file: Annotated[
        Path | None,
        typer.Option(
            "--hosts-file",
            metavar="FILE",
            help="the file of the hosts that --hosts or the experiment names; default: hosts.yaml",
        ),
    ] = None,
    renew: Renew = False,
) -> None:
    """Run an experiment: build its network, train across it, and write a report with a verdict."""
    from testbed.run.execute import execute
    from testbed.scaleout.split.run import run_on
    from testbed.spec.experiment import Experiment
    from testbed.spec.sweep import as_yaml

    if hosts not in (None, "all"):
        hosts = as_yaml([name.strip() for name in hosts.split(",")])
    changes = overrides(set_, {"hosts": hosts})
    with interruptible_run():
        need_root_for(experiment, changes)
        display = progress_display(quiet, beside_output=json_, port=api_port(open_, port))
        if renew:
            renew_images([Experiment.load(experiment, changes)], display)
        outcome = execute(experiment, changes, strict, page, display, run_on(hosts_file, strict))
    if json_ or quiet:
        tell(outcome, json_)
    if not outcome.finished or outcome.page is None or (strict and outcome.verdict != "trusted"):
        raise typer.Exit(FAILED)


def simulate(
    experiment: ExperimentFile,
    set_: Set = [],  # noqa: B006
    seed: Annotated[int | None, typer.Option(min=0, help="the seed of everything random; default: the file's")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="the number of rounds; default: the file's")] = None,
    gradients: Annotated[
        bool,
        typer.Option("--gradients", help="compute real gradients, in one process; without it only times are simulated"),
    ] = False,
) -> None:
    """Simulate an experiment: its rounds, re-planning and events on simulated time; it writes a run directory too."""
    from testbed.run.terminal.display import Display
    from testbed.simulation.simulate import simulate as simulated

    changes = overrides(set_, {"seed": seed, "train.rounds": rounds})
    with interruptible_run("the simulation was ended"):
        outcome = simulated(experiment, changes, gradients, page, Display())
    if not outcome.finished or outcome.page is None:
        raise typer.Exit(FAILED)


def tell(outcome: Executed, as_json: bool) -> None:
    """Print a run's result: the whole summary as JSON, or the verdict with its reasons."""
    if as_json:
        typer.echo(json.dumps({**_summary(outcome), "directory": str(outcome.directory)}))
        return
    tell_reasons(outcome)
    out.print(f"{outcome.verdict}: {outcome.page or outcome.directory}", markup=False)


def tell_reasons(outcome: Executed) -> None:
    """Print the reasons of a run's verdict on the error output."""
    for reason in _summary(outcome)["reasons"]:
        err.print(f"{'suspect' if outcome.finished else 'failed'}: {reason}", markup=False)


def _summary(outcome: Executed) -> dict[str, Any]:
    file = outcome.directory / "summary.json"  # missing if the disk is full
    return json.loads(file.read_text()) if file.exists() else {"verdict": outcome.verdict, "reasons": []}


def page(run: Path) -> Path:
    """Write the report page of a run that is over, and return its path.

    The drawing library takes a second to load, so it is loaded here.
    """
    from testbed.report.page import write_report

    return write_report(run)


@contextmanager
def interruptible_run(
    undone: str = "the network was taken down", without_records: str = "no records were written"
) -> Iterator[None]:
    """Let signals interrupt a run; the program then ends with a text: what was undone, and where the records are.

    The text is `without_records` where no run of this process was interrupted.
    """
    try:
        with interruptible():
            yield
    except Interrupted as signal_:
        outcome = without_records
        if signal_.records is not None:
            page = f", their page is {signal_.page}" if signal_.page else ""
            outcome = f"{undone}; records are in {signal_.records}{page}"
        raise fail(INTERRUPTED, f"interrupted ({signal_}): {outcome}") from None
