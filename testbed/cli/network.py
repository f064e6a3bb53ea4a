"""The verbs that take networks away: down, clean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.console import BAD_INPUT, CANNOT, fail
from testbed.cli.standing import Name, need_root, standing_network

if TYPE_CHECKING:
    from testbed.emulation.cleanup import Cleaned

#: Of networks, and of runs, whose names have a date and a time.
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


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
    for verb in (down, clean):
        app.command()(verb)


def _clean(name: str | None) -> Cleaned:
    from testbed.emulation.cleanup import clean_with_engine
    from testbed.emulation.containers.engine import EngineError

    need_root()
    try:
        return clean_with_engine(name)
    except EngineError as error:
        raise fail(CANNOT, f"all else was taken away, but {error}") from None
