"""The verb that runs a program on all workers: `launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from testbed.cli.console import BAD_INPUT, FAILED, TOPOLOGY, Quiet, fail, interruptible_verb, progress_display
from testbed.cli.standing import Name, need_root, standing_network
from testbed.cli.surroundings import OUT, SHM, TMP, Files, Image, Out, Renew, Shm, Tmp, containers

#: Where the words after `--` are kept for the verb.
COMMAND = "command"


class CommandAtEnd(TyperCommand):
    """A verb whose line ends in `-- CMD…`. What comes before may be left out, and is no part of it."""

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
        str | None, typer.Option(metavar="A,B", help="these workers alone, in the order of their ranks")
    ] = None,
    nproc: Annotated[int, typer.Option(min=1, metavar="K", help="processes on each worker")] = 1,
    on_host: Annotated[bool, typer.Option("--on-host", help="this machine's program, in their networks")] = False,
    backend: Annotated[
        Literal["wan"] | None, typer.Option(help="what a script that says gloo is to get (docs/sync.md)")
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(metavar="NAME:OPTION=VALUE,…", help="what is around its optimizer's steps (docs/machines.md)"),
    ] = None,
    files: Files = None,
    image: Image = None,
    renew: Renew = False,
    tmp: Tmp = TMP,
    shm: Shm = SHM,
    out: Out = OUT,
    quiet: Quiet = False,
) -> None:
    """Run a program on every worker at once, with what torchrun sets in its environment.

    It runs in the workers' containers, on TOPOLOGY's network, where they see the current folder or that of --files; or
    on one that is up, as its containers are.
    """
    from testbed.launch.command import Command
    from testbed.run.programs.launch import launch_on, launch_over
    from testbed.spec.topology import Topology

    words = context.meta[COMMAND]
    if not words:
        raise fail(BAD_INPUT, "no command\n    write instead: testbed launch … -- python train.py")
    if topology is not None and name is not None:
        raise fail(BAD_INPUT, f"{topology} and --name {name} at once\n    write instead: one of them")
    if topology is None and (files or image or renew):
        remedy = "TOPOLOGY, or `testbed up TOPOLOGY --files DIR --image IMAGE` first"
        raise fail(
            BAD_INPUT, f"--files and --image: containers that are up stay as they are\n    write instead: {remedy}"
        )
    display = progress_display(quiet)
    command = Command(words, workers.split(",") if workers else None, nproc, on_host, backend, scheme)
    with interruptible_verb(": everything that was started was ended"):
        if topology is None:
            finished = launch_on(standing_network(name), command, display)
        else:
            wanted = Topology.load(topology.absolute())
            need_root()
            finished = launch_over(
                wanted, command, containers(files or Path.cwd(), image, renew, tmp, shm, out), display
            )
    if not finished:
        raise typer.Exit(FAILED)


def register(app: typer.Typer) -> None:
    """Give the program this verb."""
    app.command(cls=CommandAtEnd)(launch)
