"""`testbed topology`: topology files made of networks that others drew or measured, and presets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import list_presets, out, quantity
from testbed.spec.units import Delay, Rate, count

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.callback()
def topology() -> None:
    """Make topology files of networks that others drew or measured, and name those that come with the testbed."""


@app.command("list")
def list_() -> None:
    """List the presets, each with its first line; `testbed up NAME` builds one."""
    list_presets("topology")


@app.command("import")
def import_(
    graph: Annotated[Path, typer.Argument(help="a graph in GML or GraphML, or a CSV matrix of round trips in ms")],
    target: Annotated[Path, typer.Option("--out", help="the topology file to write; its name is the network's")],
    rate: Annotated[
        float, typer.Option(parser=quantity(Rate), metavar="RATE", help="of links whose edge has no capacity")
    ] = 100e6,
    delay: Annotated[
        float | None,
        typer.Option(parser=quantity(Delay), metavar="TIME", help="one way, of links with no length or positions"),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="at each site")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="refuse a graph that is not connected")] = False,
) -> None:
    """Make a topology of a graph: delays by 0.0085 ms a kilometre and 4 ms, one way, or half a round trip."""
    from testbed.spec.graph import Defaults, import_graph

    made = import_graph(graph, target, Defaults(rate, delay), workers, strict)
    for note in made.notes:
        out.print(note, markup=False)
    sites, links = len(made.topology.sites), len(made.topology.links)
    out.print(f"{target}: {count(sites, 'site')}, {count(links, 'directed link')}", markup=False)
