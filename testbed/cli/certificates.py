"""`testbed certificates`: what machines show each other under TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(certificates)


def certificates(
    folder: Annotated[Path, typer.Argument(help="where they are kept; its authority makes those that are missing")],
    members: Annotated[list[str], typer.Argument(help="the members' names")],
) -> None:
    """Make an authority, and a folder for the controller and each member to run with --tls (docs/sync.md)."""
    from testbed.certificates import AUTHORITY_KEY, make_certificates

    for made in make_certificates(folder, members):
        typer.echo(made)
    typer.echo(f"Copy each folder to its own machine, and {folder / AUTHORITY_KEY}, which makes more of them, to none.")
