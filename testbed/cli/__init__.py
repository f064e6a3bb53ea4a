"""The command line `testbed`: parses arguments, calls the library, and turns errors into a text and an exit code."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from testbed.cli import (
    compare,
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

HELP = """\
Emulate a wide-area network on one Linux machine, and train PyTorch models across it.

\b
see what this machine can do   testbed doctor
run an experiment              testbed run quickstart
look at its result             testbed view runs/latest
start your own program         testbed launch TOPOLOGY -- python train.py
build a network, work in it    testbed network up TOPOLOGY
change a link while it runs    testbed link set 'A->B' --rate 5mbit
write a file of your own       testbed new experiment NAME

Exit codes: 0 done; 1 the run failed, or its verdict is `suspect` under --strict; 2 bad input; 3 this machine can't;
130 interrupted.
"""

network_app = typer.Typer(
    no_args_is_help=True, help="Build networks, look at those that are up, work in them, and take them down."
)
network_app.command("up")(network.up)
network_app.command("list")(running_network.status)
network_app.command("exec")(running_network.exec_)
network_app.command("swap")(running_network.swap)
network_app.command("down")(network.down)
network_app.command("clean")(network.clean)

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
        "check": runs.check,
        "runs": runs.app,
    },
    "Work with what runs": {
        "network": network_app,
        "link": running_network.link_app,
        "worker": running_network.worker_app,
    },
    "Write files": {
        "new": files.new,
        "schema": files.schema,
        "experiment": files.experiment_app,
        "topology": files.topology_app,
        "trace": trace.app,
    },
    "Prepare machines": {
        "doctor": machines.doctor,
        "setup": machines.setup,
        "cluster": machines.cluster_app,
        "certificates": machines.certificates,
    },
}

#: The older forms of commands, which `--help` does not list; scripts may go on using them. The form `link LINK …`
#: is read by the group `link`.
ALIASES: dict[str, tuple[str, Callable[..., Any]]] = {
    "up": ("network up", network.up),
    "status": ("network list", running_network.status),
    "exec": ("network exec", running_network.exec_),
    "swap": ("network swap", running_network.swap),
    "down": ("network down", network.down),
    "clean": ("network clean", network.clean),
}


class Commands(Verbs):
    """All commands, in the order of their panels; the older forms are not listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands that `--help` lists."""
        return [name for commands in PANELS.values() for name in commands]


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, help=HELP)


def _register() -> None:
    for panel, commands in PANELS.items():
        for name, command in commands.items():
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
            else:
                kind = launch.CommandAtEnd if command is launch.launch else None
                app.command(name, cls=kind, rich_help_panel=panel)(command)
    for name, (_, command) in ALIASES.items():
        app.command(name, hidden=True)(command)


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
    """Run the command line. A character that the output's encoding lacks is printed as a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":  # standard error never raises
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except BrokenPipeError:
        sys.exit(FAILED)
