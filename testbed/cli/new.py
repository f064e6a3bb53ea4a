"""`testbed new`: commented starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import out
from testbed.starts import KINDS, StartError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(new)


def new(
    kind: Annotated[str, typer.Argument(help=" or ".join(KINDS))],
    name: Annotated[str, typer.Argument(help="what to call it")],
) -> None:
    """Write a commented start that runs: an experiment, a topology, a scheme, a policy or a form of traces.

    Its first lines say how.
    """
    if kind not in KINDS:
        raise StartError(f"{kind!r} has no start\n    write instead: {', '.join(KINDS)}")
    for file in KINDS[kind](name, Path()):
        out.print(file, markup=False)
