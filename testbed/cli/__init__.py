"""The command line `testbed`: parses arguments, calls the library, and turns errors into a text and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from testbed.cli import (
    check,
    compare,
    doctor,
    experiment,
    files,
    launch,
    machines,
    network,
    plan,
    running_network,
    runs,
    trace,
)
from testbed.cli.console import BAD_INPUT as BAD_INPUT
from testbed.cli.console import CANNOT as CANNOT
from testbed.cli.console import FAILED, Verbs
from testbed.resources import __version__

HELP = (
    "Emulate a wide-area network on one Linux machine, and train PyTorch models across it.\n\n"
    "Start with `testbed doctor`, which shows what this machine can do. Then run an experiment (`testbed run "
    "quickstart`), start your own program on every worker of a network (`testbed launch`), or build a network and work "
    "in it (`testbed up`, `testbed exec`, `testbed link`).\n\n"
    "Exit codes: 0 done; 1 the run failed, or its verdict is `suspect` under --strict; 2 bad input; 3 this machine "
    "can't."
)

#: Commands by the panel of `testbed --help` that lists them; a Typer is a group of commands.
PANELS: dict[str, dict[str, Callable[..., Any] | typer.Typer]] = {
    "Run experiments": {
        "run": experiment.run,
        "simulate": experiment.simulate,
        "compare": compare.compare,
        "sweep": compare.sweep,
        "launch": launch.launch,
        "plan": plan.plan,
    },
    "Look at runs": {
        "report": runs.report,
        "view": runs.view,
        "export": runs.export,
        "check": check.check,
        "runs": runs.app,
    },
    "Work with a network": {
        "up": network.up,
        "status": running_network.status,
        "exec": running_network.exec_,
        "link": running_network.link,
        "swap": running_network.swap,
        "worker": running_network.worker_app,
        "down": network.down,
        "clean": network.clean,
    },
    "Write files": {
        "new": files.new,
        "schema": files.schema,
        "experiment": files.experiment_app,
        "topology": files.topology_app,
        "trace": trace.app,
    },
    "Prepare machines": {
        "doctor": doctor.doctor,
        "setup": doctor.setup,
        "cluster": machines.cluster_app,
        "certificates": machines.certificates,
    },
}

app = typer.Typer(cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False, help=HELP)


def _register() -> None:
    for panel, commands in PANELS.items():
        for name, command in commands.items():
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
            else:
                kind = launch.CommandAtEnd if command is launch.launch else None
                app.command(name, cls=kind, rich_help_panel=panel)(command)


_register()


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"testbed {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    except BrokenPipeError:
        sys.exit(FAILED)
