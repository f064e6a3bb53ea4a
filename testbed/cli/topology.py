"""`testbed topology`: make topology files of networks that others drew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import BAD_INPUT, fail, quantity
from testbed.spec.errors import SpecError
from testbed.spec.units import Rate

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.callback()
def topology() -> None:
    """Make topology files of networks that others drew."""


@app.command("import")
def import_(
    graph: Annotated[Path, typer.Argument(help="a graph: GML or GraphML")],
    out: Annotated[Path, typer.Option(help="the topology file to write; its name is the network's")],
    rate: Annotated[
        float, typer.Option(parser=quantity(Rate), metavar="RATE", help="of links whose edge has no capacity")
    ] = 100e6,
    workers: Annotated[int, typer.Option(min=0, help="at each site")] = 1,
) -> None:
    """Make a topology of a graph: delays by 0.0085 ms a kilometre and 4 ms, one way."""
    from testbed.spec.graph import import_graph

    try:
        made = import_graph(graph, out, rate, workers)
    except (SpecError, OSError) as error:  # OSError: the file cannot be written
        raise fail(BAD_INPUT, error) from None
    typer.echo(f"{out}: {len(made.sites)} sites, {len(made.links)} directed links")
