"""The commands that make files which a user writes: `new`, `schema`, `experiment`, `topology`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from testbed.atomic_file import check_new
from testbed.cli.console import bad_input, list_presets, out, quantity
from testbed.spec.units import Delay, Rate, count
from testbed.starts import KINDS, StartError

experiment_app = typer.Typer(no_args_is_help=True, help="List the experiments that come with the testbed.")
topology_app = typer.Typer(
    no_args_is_help=True, help="List the topologies that come with the testbed, or make one from the file of a graph."
)


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"one of {', '.join(KINDS)}")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="the name of the file to write, without its ending")],
) -> None:
    """Write a commented example that runs: an experiment, a topology, a scheme, a policy or a form of traces.

    Its first lines say how to run it.
    """
    if kind not in KINDS:
        raise StartError(f"there is no example of a {kind!r}\n    write instead: {', '.join(KINDS)}")
    for file in KINDS[kind](name, Path()):
        out.print(file, markup=False)


def schema(kind: Annotated[str, typer.Argument(metavar="KIND", help="experiment or topology")]) -> None:
    """Print the JSON Schema of a kind of file, with which editors complete fields and mark errors."""
    from testbed.planning import named_policies
    from testbed.spec.schemas import experiment_schema, topology_schema

    kinds = {"experiment": lambda: experiment_schema(named_policies()), "topology": topology_schema}
    if kind not in kinds:
        raise bad_input(f"there is no schema of a {kind!r}", " or ".join(kinds))
    typer.echo(json.dumps(kinds[kind](), indent=1, ensure_ascii=False))


@experiment_app.command("list")
def list_experiments() -> None:
    """List the preset experiments; `testbed run NAME` runs one, `testbed simulate NAME` simulates it."""
    list_presets("experiment")


@topology_app.command("list")
def list_topologies() -> None:
    """List the preset topologies; `testbed network up NAME` builds one."""
    list_presets("topology")


@topology_app.command("import")
def import_(
    graph: Annotated[
        Path, typer.Argument(metavar="GRAPH", help="a graph in GML or GraphML, or a CSV matrix of round trips in ms")
    ],
    target: Annotated[Path, typer.Option("--out", help="the topology file to write; its name becomes the network's")],
    rate: Annotated[
        float,
        typer.Option(
            parser=quantity(Rate),
            metavar="RATE",
            help="rate of links whose edge states no capacity",
            show_default="100mbit",
        ),
    ] = 100e6,
    delay: Annotated[
        float | None,
        typer.Option(
            parser=quantity(Delay),
            metavar="TIME",
            help="one-way delay, such as 20ms, of links whose edge has no delay or length and whose sites no positions",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="workers at each site")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="refuse a graph that is not connected")] = False,
) -> None:
    """Make a topology file from a graph.

    A link has the one-way delay of its edge, or half of the edge's round trip, or else 0.0085 ms a kilometre plus 4 ms.
    """
    from testbed.spec.graph import Defaults, import_graph
    from testbed.spec.topology import MAX_WORKERS

    if workers > MAX_WORKERS:
        raise bad_input(f"--workers {workers} is more than a site's LAN has addresses for", f"--workers {MAX_WORKERS}")
    check_new([target])
    made = import_graph(graph, target, Defaults(rate, delay), workers, strict)
    for note in made.notes:
        out.print(note, markup=False)
    sites, links = len(made.topology.sites), len(made.topology.links)
    out.print(f"{target}: {count(sites, 'site')}, {count(links, 'directed link')}", markup=False)
