"""The command `plan`: a policy's plan for a declared network, or for a view that a run recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from testbed.cli.console import BAD_INPUT, TOPOLOGY, bad_input, fail

if TYPE_CHECKING:
    from testbed.plan import Plan
    from testbed.planning import View

    R = TypeVar("R", View, Plan)

#: At most this many chunks times hops are simulated, in about half a minute; larger plans only get a fluid prediction.
SIMULATED_HOPS = 500_000


def plan(
    policy: Annotated[
        str, typer.Option(metavar="POLICY", help="the policy's name, with options: netstorm or netstorm:roots=1")
    ],
    topology: Annotated[Path | None, TOPOLOGY] = None,
    model_bytes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="bytes that a round synchronizes; default with --view: the view's own"),
    ] = None,
    view: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="plan for this recorded view instead of TOPOLOGY: runs/ID/views/NNNN.json"),
    ] = None,
    last: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the plan in force when the view was recorded: runs/ID/plans/NNNN.json"),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="print one JSON object, which holds the whole plan")] = False,
) -> None:
    """Show a policy's plan for a network, with its predicted seconds a round and the lower bounds.

    With --view and --last it replays a decision of a run.
    decisions.jsonl names the view, and the epoch of the plan in force, from which some policies begin.
    """
    from testbed.cli.tables import print_plan

    made, figures, own = planned(policy, topology, model_bytes, view, last)
    if json_:
        typer.echo(json.dumps({**figures, "plan": made.to_json()}))
    else:
        print_plan(made, figures, own)


def planned(
    policy: str, topology: Path | None, model_bytes: int | None, view: Path | None, last: Path | None
) -> tuple[Plan, dict[str, Any], bool]:
    """Return the plan, its figures in seconds and bytes, and whether its policy is one of the project's.

    Exit with bad input for missing or contradictory arguments.
    """
    from testbed.plan import Plan
    from testbed.planning import BoundError, PolicyError, View
    from testbed.planning.bound import bound, least_period
    from testbed.planning.events import load as load_simulator
    from testbed.planning.policy import check_plan, is_own
    from testbed.plugins import policy_named, refusal
    from testbed.run.sweep.planned_run import Variant

    if view is None:
        seen = _declared(topology, model_bytes)
    elif topology is not None:
        raise bad_input(f"{topology} and --view {view}: can't be given together", "one of them")
    else:
        seen = _recorded(view, View, "views/0000.json")
        seen = seen if model_bytes is None else replace(seen, model_bytes=model_bytes)
    before = None if last is None else _recorded(last, Plan, "plans/0000.json")
    try:
        load_simulator()
        asked = Variant.parse(policy)
        chosen = policy_named(asked.policy, asked.options)
        try:
            made = chosen.plan(seen) if before is None else chosen.replan(seen, before)
            check_plan(chosen, seen, made)
            why = json.loads(json.dumps(chosen.explain(seen, made)))  # a user's policy may return values beyond JSON
        except Exception as error:
            raise fail(BAD_INPUT, refusal(chosen, error)) from None
        least = bound(seen)
        period_s = least_period(seen, known=least)
    except (PolicyError, BoundError, ValueError) as error:
        raise fail(BAD_INPUT, error) from None
    figures = _figures(seen, made) | {
        "lower_bound_seconds": period_s,
        "bound_seconds": least.seconds,
        "bound_gap": least.gap,
        "why": why,
    }
    figures["ratio_to_lower_bound"] = figures["predicted_seconds"] / period_s if period_s else None
    figures["ratio_to_bound"] = figures["predicted_seconds"] / least.seconds if least.seconds else None
    return made, figures, is_own(chosen)


def _recorded(file: Path, kind: type[R], example: str) -> R:
    """Return the view or the plan that a run recorded in a file. Exit with bad input if the file holds none."""
    from testbed.trace.text import MOST_BYTES, text_of

    try:
        return kind.from_json(json.loads(text_of(file, MOST_BYTES)))
    except (OSError, ValueError, RecursionError) as error:  # ViewError, PlanError and JSON's are ValueErrors
        name = kind.__name__.lower()
        remedy = f"a {name} that a run recorded, such as runs/latest/{example}"
        raise bad_input(f"{file}: holds no {name}: {error}", remedy) from None


def _declared(file: Path | None, model_bytes: int | None) -> View:
    from testbed.planning import ViewError
    from testbed.run.view import declared_view
    from testbed.spec.topology import Topology

    if file is None or model_bytes is None:
        remedy = "testbed plan netstorm9 --policy packing --model-bytes 10900000"
        raise bad_input("plan: needs TOPOLOGY and --model-bytes, or --view", remedy)
    topology = Topology.load(file)
    try:
        return declared_view(topology, model_bytes)
    except ViewError as error:
        raise fail(BAD_INPUT, f"{file}: {error}") from None


def _figures(view: View, made: Plan) -> dict[str, Any]:
    from testbed.planning import predict, simulate

    cost = predict(made, view)
    hops = sum(made.trees[tree].share for _, _, tree in made.edges()) * view.model_bytes / made.chunk_bytes
    return {
        "policy": made.policy,
        "knowledge": view.knowledge,
        "members": len(made.members),
        "trees": len(made.trees),
        "chunk_bytes": made.chunk_bytes,
        "model_bytes": view.model_bytes,
        "predicted_seconds": cost.seconds,
        "drain_seconds": cost.drain_s,
        "fill_seconds": cost.fill_s,
        "bottleneck": cost.bottleneck,
        "simulated_seconds": simulate(made, view).seconds if hops <= SIMULATED_HOPS else None,
    }
