"""A policy asked away from any run: about a declared network, or about a view that a run recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.cli.console import BAD_INPUT, fail
from testbed.plan import Plan
from testbed.planning import BoundError, PolicyError, View, ViewError, predict, simulate
from testbed.planning.bound import bound, least_period
from testbed.planning.events import load as load_simulator
from testbed.plugins import policy_named, refusal
from testbed.run.sweep.planned_run import Variant
from testbed.run.view import declared_view
from testbed.spec.topology import Topology
from testbed.trace.text import MOST_BYTES, text_of

#: Chunks times hops that are simulated: about half a minute. Of more the fluid prediction must do.
SIMULATED_HOPS = 500_000


def planned(
    policy: str, topology: Path | None, model_bytes: int | None, view: Path | None, last: Path | None
) -> tuple[Plan, dict[str, Any]]:
    """The plan, and its figures in seconds and bytes; what is missing or makes no sense ends the program with words."""
    seen = _recorded(view, model_bytes) if view else _declared(topology, model_bytes)
    try:
        load_simulator()
        asked = Variant.parse(policy)
        chosen = policy_named(asked.policy, asked.options)
        try:
            made = chosen.replan(seen, _in_force(last)) if last else chosen.plan(seen)
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
        "why": chosen.explain(seen, made),
    }
    figures["ratio_to_lower_bound"] = figures["predicted_seconds"] / period_s if period_s else None
    figures["ratio_to_bound"] = figures["predicted_seconds"] / least.seconds if least.seconds else None
    return made, figures


def _recorded(file: Path, model_bytes: int | None) -> View:
    try:
        view = View.from_json(json.loads(text_of(file, MOST_BYTES)))
    except (OSError, ValueError) as error:  # ViewError and JSON's are ValueErrors
        remedy = "a view that a run recorded, such as runs/latest/views/0.json"
        raise fail(BAD_INPUT, f"{file}: is no view: {error}\n    write instead: {remedy}") from None
    return view if model_bytes is None else replace(view, model_bytes=model_bytes)


def _in_force(file: Path) -> Plan:
    try:
        return Plan.from_json(json.loads(text_of(file, MOST_BYTES)))
    except (OSError, ValueError) as error:  # PlanError and JSON's are ValueErrors
        remedy = "a plan that a run recorded, such as runs/latest/plans/0000.json"
        raise fail(BAD_INPUT, f"{file}: is no plan: {error}\n    write instead: {remedy}") from None


def _declared(file: Path | None, model_bytes: int | None) -> View:
    if file is None or model_bytes is None:
        remedy = "testbed plan topologies/netstorm9.yaml --policy packing --model-bytes 10900000"
        raise fail(BAD_INPUT, f"a topology and --model-bytes are needed, or --view\n    write instead: {remedy}")
    topology = Topology.load(file)
    try:
        return declared_view(topology, model_bytes)
    except ViewError as error:
        raise fail(BAD_INPUT, f"{file}: {error}") from None


def _figures(view: View, made: Plan) -> dict[str, Any]:
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
