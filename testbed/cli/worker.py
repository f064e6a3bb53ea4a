"""`testbed worker`: the workers of a network that is up, or of a run under way."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from testbed.cli.standing import Json, Name, asked, network_up

app = typer.Typer(no_args_is_help=True, help=__doc__)

Worker = Annotated[str, typer.Argument(metavar="WORKER", help="such as paris-w0")]


@app.callback()
def worker() -> None:
    """Add a worker to a network that is up or an elastic run; end or restart one of a run."""


@app.command()
def add(
    site: Annotated[str, typer.Argument(metavar="SITE", help="where; it gets what the site declares")],
    name: Name = None,
    json_: Json = False,
) -> None:
    """Start one more worker at a site; in an elastic run it joins the others, and trains with them."""
    from testbed.api.requests import AddWorker

    added = asked(network_up(name), lambda network: network.do(AddWorker(site=site)))
    if json_:
        typer.echo(json.dumps(added))
    else:
        typer.echo(f"{added['worker']} is up at {added['address']}")


@app.command()
def kill(worker: Worker, name: Name = None) -> None:
    """End a worker's program in an elastic run, as a crash would."""
    from testbed.api.requests import KillWorker

    asked(network_up(name), lambda network: network.do(KillWorker(worker=worker)))
    typer.echo(f"{worker} was killed")


@app.command()
def restart(worker: Worker, name: Name = None) -> None:
    """Start a worker's program again in an elastic run, in a container of its own."""
    from testbed.api.requests import RestartWorker

    asked(network_up(name), lambda network: network.do(RestartWorker(worker=worker)))
    typer.echo(f"{worker} was started again")
