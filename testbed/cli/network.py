"""The verbs that bring a network up and take it away: up, down, clean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from testbed.cli.console import BAD_INPUT, CANNOT, INTERRUPTED, fail
from testbed.cli.standing import Name, TopologyFile, need_root, standing_network
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.spec.errors import SpecError

if TYPE_CHECKING:
    from testbed.emulation.cleanup import Cleaned
    from testbed.emulation.testbed import Backend
    from testbed.spec.topology import Topology

#: Of networks, and of runs, whose names have a date and a time.
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
#: As for a topology's own name: it becomes part of the containers'.
NEW_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


def up(
    topology: TopologyFile,
    name: Annotated[str | None, typer.Option("--name", metavar="N", help="its name; the topology's by default")] = None,
    backend: Annotated[
        Literal["auto", "netem", "userspace"], typer.Option("--backend", help="what shapes the links")
    ] = "auto",
    cli: Annotated[bool, typer.Option("--cli", help="Mininet's prompt on it; taken down at the prompt's end")] = False,
) -> None:
    """Build a network with its containers, replay its traces, and leave it up in the background."""
    from testbed.emulation.errors import EmulationError
    from testbed.emulation.launch import LaunchFailed
    from testbed.spec.topology import Topology

    try:
        wanted = Topology.load(topology.absolute())
    except SpecError as error:
        raise fail(BAD_INPUT, error) from None
    name = _new_name(name or wanted.name)
    need_root()
    try:
        with interruptible():
            (_up_with_prompt if cli else _up_in_background)(name, wanted, backend)
    except FileExistsError as error:
        raise fail(BAD_INPUT, error) from None
    except LaunchFailed as error:
        raise fail(error.code, error) from None
    except EmulationError as error:
        raise fail(CANNOT, error) from None
    except Interrupted as signal_:
        raise fail(INTERRUPTED, f"interrupted ({signal_}): everything that was made was taken away") from None


def _up_in_background(name: str, topology: Topology, backend: Backend) -> None:
    from testbed.emulation.launch import launch
    from testbed.run.display import Display

    display = Display()
    launch(name, topology.file, backend, display.step)
    display.say(f"  {name} is up; `testbed status` shows it, `testbed down --name {name}` takes it away")


def _up_with_prompt(name: str, topology: Topology, backend: Backend) -> None:
    from testbed.emulation.prompt import prompt_on
    from testbed.emulation.testbed import Testbed
    from testbed.run.display import Display

    prompt_on(Testbed(topology, name=name, backend=backend, step=Display().step))


def down(name: Name = None) -> None:
    """Take a network away."""
    name = standing_network(name)
    _clean(name)
    typer.echo(f"{name} is down")


def clean(
    name: Annotated[str | None, typer.Option("--name", metavar="N", help="this one alone")] = None,
) -> None:
    """Take away every network and container of ours, also what a crash left; nothing else is touched."""
    if name is not None and not NAME.fullmatch(name):
        raise fail(BAD_INPUT, f"{name!r} is no network's name\n    write instead: small letters, digits and dashes")
    done = _clean(name)
    found = [f"{len(done.networks)} networks", f"{len(done.containers)} containers", f"{len(done.processes)} processes"]
    typer.echo(f"taken away: {', '.join(found)}")


def register(app: typer.Typer) -> None:
    """Give the program these verbs."""
    for verb in (up, down, clean):
        app.command()(verb)


def _clean(name: str | None) -> Cleaned:
    from testbed.emulation import engine
    from testbed.emulation.cleanup import clean as take_away

    need_root()
    try:
        client = engine.connect()
    except engine.EngineError:
        client = None  # then there are no containers either
    return take_away(client, name)


def _new_name(name: str) -> str:
    """A name that a network may get now."""
    from testbed.emulation import label

    if not NEW_NAME.fullmatch(name):
        remedy = "at most 31 small letters, digits and dashes, a letter or digit first"
        raise fail(BAD_INPUT, f"--name {name}: no name for a network\n    write instead: {remedy}")
    if label.owner(name) is not None:
        remedy = f"--name with another, or `testbed down --name {name}` first"
        raise fail(BAD_INPUT, f"a network named {name} is up\n    write instead: {remedy}")
    return name
