"""The command `launch`: starts a program on all workers of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from testbed.cli.console import (
    BAD_INPUT,
    FAILED,
    TOPOLOGY,
    Quiet,
    fail,
    interruptible_verb,
    need_root,
    progress_display,
)
from testbed.cli.container_options import OUT, SHM, TMP, Files, Image, Out, Renew, Shm, Tmp, program_containers
from testbed.cli.network import Name, chosen_network

#: The key of the context's `meta` that holds the words after `--`.
COMMAND = "command"


class CommandAtEnd(TyperCommand):
    """A command whose line ends in `-- CMD…`; the arguments before it may be left out."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- CMD…"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


def launch(
    context: typer.Context,
    topology: Annotated[Path | None, TOPOLOGY] = None,
    name: Name = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="start only on these workers, in the order of their ranks; default: on all"),
    ] = None,
    nproc: Annotated[int, typer.Option(min=1, metavar="K", help="processes to start on each worker")] = 1,
    on_host: Annotated[
        bool,
        typer.Option(
            "--on-host",
            help="start a program of this machine in each worker's network namespace, instead of one in its container",
        ),
    ] = False,
    backend: Annotated[
        Literal["wan"] | None,
        typer.Option(
            help="give scripts that ask for gloo this backend; wan follows the controller's plans (docs/sync.md)"
        ),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:OPTION=VALUE,…",
            help="wrap the script's optimizer in a scheme, such as diloco:every=32 (docs/machines.md)",
        ),
    ] = None,
    files: Files = None,
    image: Image = None,
    renew: Renew = False,
    tmp: Tmp = TMP,
    shm: Shm = SHM,
    out: Out = OUT,
    quiet: Quiet = False,
) -> None:
    """Start a program on every worker of a network at once, with the environment variables that torchrun sets.

    With TOPOLOGY, its network is built first, and the containers see the current folder, or that of --files.
    Without TOPOLOGY, the program starts on a network that is up.
    """
    from testbed.launch.command import Command
    from testbed.run.programs.launch import launch_on, launch_over
    from testbed.spec.topology import Topology

    words = context.meta[COMMAND]
    if not words:
        raise fail(BAD_INPUT, "launch: no command was given\n    write instead: testbed launch … -- python train.py")
    if topology is not None and name is not None:
        raise fail(BAD_INPUT, f"{topology} and --name {name}: can't be given together\n    write instead: one of them")
    if topology is None and (files or image or renew):
        remedy = "TOPOLOGY, or `testbed up TOPOLOGY --files DIR --image IMAGE` first"
        raise fail(
            BAD_INPUT,
            f"--files and --image: can't change the containers of a network that is up\n    write instead: {remedy}",
        )
    display = progress_display(quiet)
    command = Command(words, workers.split(",") if workers else None, nproc, on_host, backend, scheme)
    with interruptible_verb(": every program was ended"):
        if topology is None:
            finished = launch_on(chosen_network(name), command, display)
        else:
            wanted = Topology.load(topology.absolute())
            need_root()
            finished = launch_over(
                wanted, command, program_containers(files or Path.cwd(), image, renew, tmp, shm, out), display
            )
    if not finished:
        raise typer.Exit(FAILED)
