"""The verb that brings a network up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from testbed.cli.console import (
    BAD_INPUT,
    Open,
    Port,
    Quiet,
    TopologyFile,
    door,
    fail,
    interruptible_verb,
    progress_display,
)
from testbed.cli.standing import need_root, new_name
from testbed.cli.surroundings import OUT, SHM, TMP, Files, Image, Out, Renew, Shm, Tmp, containers

if TYPE_CHECKING:
    from testbed.emulation.containers.fleet import ProgramContainers
    from testbed.emulation.testbed import Backend
    from testbed.run.terminal.display import Display
    from testbed.spec.topology import Topology


def up(
    topology: TopologyFile,
    name: Annotated[str | None, typer.Option("--name", metavar="N", help="its name; the topology's by default")] = None,
    backend: Annotated[
        Literal["auto", "netem", "userspace"], typer.Option("--backend", help="what shapes the links")
    ] = "auto",
    files: Files = None,
    image: Image = None,
    renew: Renew = False,
    tmp: Tmp = TMP,
    shm: Shm = SHM,
    out: Out = OUT,
    open_: Open = False,
    port: Port = None,
    cli: Annotated[bool, typer.Option("--cli", help="Mininet's prompt on it; taken down at the prompt's end")] = False,
    quiet: Quiet = False,
) -> None:
    """Build a network with its containers, replay its traces, and leave it up in the background."""
    from testbed.spec.topology import Topology

    if cli and (open_ or port is not None):
        raise fail(BAD_INPUT, "--cli and --open or --port at once\n    write instead: one of them")
    wanted = Topology.load(topology.absolute())
    name = new_name(name or wanted.name)
    need_root()
    workers = containers(files, image, renew, tmp, shm, out)
    with interruptible_verb(": everything that was made was taken away"):
        display = progress_display(quiet, door=door(open_, port))
        (_up_with_prompt if cli else _up_in_background)(name, wanted, backend, workers, display)


def _up_in_background(
    name: str, topology: Topology, backend: Backend, workers: ProgramContainers, display: Display
) -> None:
    from testbed.emulation.daemon.startup import bring_up

    page = bring_up(name, topology.file, backend, workers, display.step, display.door)
    display.say(f"  {name} is up; `testbed status` shows it, `testbed down --name {name}` takes it away")
    if page:
        display.say(page)


def _up_with_prompt(
    name: str, topology: Topology, backend: Backend, workers: ProgramContainers, display: Display
) -> None:
    from testbed.emulation.daemon.prompt import prompt_on

    prompt_on(name, topology, backend, workers, display.step)


def register(app: typer.Typer) -> None:
    """Give the program this verb."""
    app.command()(up)
