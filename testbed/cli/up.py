"""The verb that brings a network up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from testbed.cli.console import (
    BAD_INPUT,
    CANNOT,
    INTERRUPTED,
    Open,
    Port,
    Quiet,
    TopologyFile,
    door,
    fail,
    progress_display,
)
from testbed.cli.standing import need_root, new_name
from testbed.cli.surroundings import OUT, SHM, TMP, Files, Image, Out, Shm, Tmp, containers
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.spec.errors import SpecError

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
    tmp: Tmp = TMP,
    shm: Shm = SHM,
    out: Out = OUT,
    open_: Open = False,
    port: Port = None,
    cli: Annotated[bool, typer.Option("--cli", help="Mininet's prompt on it; taken down at the prompt's end")] = False,
    quiet: Quiet = False,
) -> None:
    """Build a network with its containers, replay its traces, and leave it up in the background."""
    from testbed.emulation.errors import EmulationError
    from testbed.emulation.standing.background import NotUp
    from testbed.spec.topology import Topology

    if cli and (open_ or port is not None):
        raise fail(BAD_INPUT, "--cli and --open or --port at once\n    write instead: one of them")
    try:
        wanted = Topology.load(topology.absolute())
    except SpecError as error:
        raise fail(BAD_INPUT, error) from None
    name = new_name(name or wanted.name)
    need_root()
    workers = containers(files, image, tmp, shm, out)
    try:
        with interruptible():
            display = progress_display(quiet, door=door(open_, port))
            (_up_with_prompt if cli else _up_in_background)(name, wanted, backend, workers, display)
    except (SpecError, FileExistsError) as error:
        raise fail(BAD_INPUT, error) from None
    except NotUp as error:
        raise fail(error.code, error) from None
    except EmulationError as error:
        raise fail(CANNOT, error) from None
    except Interrupted as signal_:
        raise fail(INTERRUPTED, f"interrupted ({signal_}): everything that was made was taken away") from None


def _up_in_background(
    name: str, topology: Topology, backend: Backend, workers: ProgramContainers, display: Display
) -> None:
    from testbed.emulation.standing.background import bring_up

    page = bring_up(name, topology.file, backend, workers, display.step, display.door)
    display.say(f"  {name} is up; `testbed status` shows it, `testbed down --name {name}` takes it away")
    if page:
        display.say(page)


def _up_with_prompt(
    name: str, topology: Topology, backend: Backend, workers: ProgramContainers, display: Display
) -> None:
    from testbed.emulation.network.prompt import prompt_on

    prompt_on(name, topology, backend, workers, display.step)


def register(app: typer.Typer) -> None:
    """Give the program this verb."""
    app.command()(up)
