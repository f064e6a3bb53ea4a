"""`testbed plan`: what a policy makes of a network, how long a round would take, and what the bounds are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.console import TOPOLOGY


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(plan)


def plan(
    policy: Annotated[str, typer.Option(help="its name, with options: netstorm:roots=1")],
    topology: Annotated[Path | None, TOPOLOGY] = None,
    model_bytes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="bytes of a round; a view's own by default")
    ] = None,
    view: Annotated[Path | None, typer.Option(help="a recorded view: runs/ID/views/…")] = None,
    last: Annotated[Path | None, typer.Option(help="the plan that was in force: runs/ID/plans/…")] = None,
    json_: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Plan a network's synchronization, or replay a recorded decision: the plan, its predicted seconds, the bounds.

    A decision in decisions.jsonl names its view, and by epoch the plan in force, from which some policies begin.
    """
    from testbed.cli.offline import planned
    from testbed.cli.tables import print_plan

    made, figures = planned(policy, topology, model_bytes, view, last)
    if json_:
        print(json.dumps({**figures, "plan": made.to_json()}))
    else:
        print_plan(made, figures)
