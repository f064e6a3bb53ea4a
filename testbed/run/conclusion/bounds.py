"""What a run's rounds could not be shorter than: bounds for the network as it was at each time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from testbed.emulation.network.routing import Routes
from testbed.link import LinkState
from testbed.plan import PLAIN_CODEC, Plan
from testbed.planning.bound import Bound, BoundError, bound, least_period
from testbed.planning.view import View
from testbed.run import view
from testbed.run.conclusion.stretches import Stretch, states_over
from testbed.run.conclusion.summary import RoundFigures
from testbed.run.directory import RunDirectory
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology

#: The bound follows the network, so it is solved for rounds spread over the run; each takes some 10 ms.
BOUND_ROUNDS = 32


def bounds_of(
    experiment: Experiment,
    states: Sequence[Mapping[str, Any]],
    network_swaps: Sequence[Mapping[str, Any]],
    rounds: Sequence[RoundFigures],
) -> dict[int, float]:
    """Round → the bound for the network as it was when the round began, for rounds spread over the run."""
    chosen = rounds[:: max(1, ceil(len(rounds) / BOUND_ROUNDS))]
    bounds: dict[int, Bound] = {}
    newest: Bound | None = None
    for figures in chosen:
        topology = _topology_at(experiment, network_swaps, figures.entered_s)
        in_force = _states_at(states, topology, figures.entered_s)
        known = _view(experiment, topology, in_force, figures.entered_s)
        try:
            newest = bounds[figures.number] = bound(known, newest)
        except BoundError:
            continue  # an outage had cut the network in two
    return {number: its.seconds for number, its in bounds.items()}


def lower_bound(
    experiment: Experiment,
    states: Sequence[Mapping[str, Any]],
    network_swaps: Sequence[Mapping[str, Any]],
    found: Sequence[Stretch],
) -> dict[str, float | None]:
    """The lower bound of a round from end to end, a mean over the stretches' rounds, and what theirs was of it."""
    took_s = least_s = 0.0
    counted = 0
    newest: Bound | None = None
    for stretch in found:
        if any(stretch.began_s < swap["active_s"] <= stretch.ended_s for swap in network_swaps):
            continue  # two networks
        topology = _topology_at(experiment, network_swaps, stretch.began_s)
        passed = states_over(stretch, _states_at(states, topology, stretch.began_s), states)
        known = _view(experiment, topology, passed, stretch.began_s)
        try:
            newest = bound(known, newest)
        except BoundError:
            continue  # an outage had cut the network in two
        period_s = least_period(known, stretch.compute_s, newest)
        took_s += stretch.ended_s - stretch.began_s
        least_s += stretch.rounds * period_s
        counted += stretch.rounds
    return {
        "lower_bound_seconds": least_s / counted if counted else None,
        "ratio_to_lower_bound": took_s / least_s if least_s else None,
    }


def provable(experiment: Experiment, directory: RunDirectory) -> bool:
    """Whether each step took the gradients of all members, as they are; the lower bound holds for nothing else."""
    if not experiment.spec.sync.own.exact:
        return False
    plans = [json.loads(file.read_text(encoding="utf-8")) for file in directory.path.glob("plans/*.json")]
    return not any(plan.groups or plan.codec != PLAIN_CODEC or plan.link_codecs for plan in map(Plan.from_json, plans))


def _view(experiment: Experiment, topology: Topology, states: Mapping[str, LinkState], at_s: float) -> View:
    routes = Routes.over(topology, {name for name, state in states.items() if not state.up})
    return view.view_of(topology, routes, states, experiment.spec.round_bytes, at_s, "oracle")


def _topology_at(experiment: Experiment, network_swaps: Sequence[Mapping[str, Any]], at_s: float) -> Topology:
    topology = experiment.topology
    for swap in network_swaps:
        if swap["active_s"] <= at_s:
            topology = experiment.networks[swap["file"]]
    return topology


def _states_at(records: Sequence[Mapping[str, Any]], topology: Topology, at_s: float) -> dict[str, LinkState]:
    states = view.declared_states(topology)
    for record in records:
        if record["at_s"] > at_s:
            break
        if record["link"] in states:
            states[record["link"]] = LinkState(
                rate_bps=record["rate_bps"], delay_s=record["delay_s"], loss=record["loss"], up=record["up"]
            )
    return states
