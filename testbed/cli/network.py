"""The verbs that take networks away: down, clean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from testbed.cli.console import BAD_INPUT, CANNOT, fail
from testbed.cli.standing import Name, need_root, standing_network
from testbed.spec.units import count

if TYPE_CHECKING:
    import docker

T = TypeVar("T")


def down(name: Name = None) -> None:
    """Take a network away."""
    from testbed.emulation.cleanup import clean

    name = standing_network(name)
    _done(lambda client: clean(client, name))
    typer.echo(f"{name} is down")


def clean(
    name: Annotated[str | None, typer.Option("--name", metavar="N", help="this one alone, also if it runs")] = None,
    all_: Annotated[bool, typer.Option("--all", help="also what runs: every network and run of this machine")] = False,
) -> None:
    """Take away what a crash left of networks and runs; those that run go on, unless they are named, or --all is given.

    Only what bears the testbed's label is touched.
    """
    from testbed.emulation import cleanup, label

    if name is not None and not label.is_name(name):
        raise fail(BAD_INPUT, f"{name!r} is no network's name\n    write instead: small letters, digits and dashes")
    if name is not None and all_:
        raise fail(BAD_INPUT, f"--all and --name {name} at once\n    write instead: one of them")
    if all_:
        for line in _listed():
            typer.echo(line)
    if all_ or name is not None:
        done = _done(lambda client: cleanup.clean(client, name))
    else:
        done = _done(cleanup.clean_crashed)
    found = {"network": done.networks, "container": done.containers, "process": done.processes}
    typer.echo(f"taken away: {', '.join(count(len(there), noun) for noun, there in found.items())}")
    for network in label.networks() if name is None else ():
        if (owner := label.owner(network)) is not None:
            typer.echo(f"{network} goes on (process {owner.pid}); `testbed clean --name {network}` takes it away")


def register(app: typer.Typer) -> None:
    """Give the program these verbs."""
    for verb in (down, clean):
        app.command()(verb)


def _listed() -> list[str]:
    """Return a line for each network of which something is on this machine."""
    from testbed.emulation.cleanup import find, with_engine
    from testbed.emulation.containers.engine import ENGINE_ERRORS, EngineError

    need_root()
    try:
        found = with_engine(find)
    except (EngineError, *ENGINE_ERRORS):  # the clean-up that follows says so
        found = find(None)
    lines = []
    for each in found:
        there = {"container": each.containers, "process": each.processes}
        runs = f"runs, by process {each.owner.pid}" if each.owner else "left by a crash"
        lines.append(f"{each.network}: {runs}; {', '.join(count(len(of), noun) for noun, of in there.items())}")
    return lines


def _done(action: Callable[[docker.DockerClient | None], T]) -> T:
    from testbed.emulation.cleanup import with_engine
    from testbed.emulation.containers.engine import EngineError

    need_root()
    try:
        return with_engine(action)
    except EngineError as error:
        raise fail(CANNOT, f"all else was taken away, but {error}") from None
