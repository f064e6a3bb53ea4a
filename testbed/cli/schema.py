"""`testbed schema`: what editors complete files by."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from testbed.cli.console import BAD_INPUT, fail


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(schema)


def schema(kind: Annotated[str, typer.Argument(help="experiment or topology")]) -> None:
    """Print the JSON Schema of a kind of file, by which editors complete its fields and mark what is wrong."""
    from testbed.spec.schemas import experiment_schema, topology_schema

    kinds = {"experiment": experiment_schema, "topology": topology_schema}
    if kind not in kinds:
        raise fail(BAD_INPUT, f"{kind!r} has no schema\n    write instead: {' or '.join(kinds)}")
    typer.echo(json.dumps(kinds[kind](), indent=1, ensure_ascii=False))
