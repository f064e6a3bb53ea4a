"""Lower bounds of a run's rounds, for the network as it was at each time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import fmean
from typing import Any

from testbed.emulation.network.routing import Routes
from testbed.link import LinkState
from testbed.plan import PLAIN_CODEC, Plan
from testbed.planning.bound import Bound, BoundError, bound, least_period
from testbed.planning.view import View
from testbed.run import view
from testbed.run.conclusion.summary import Record, RoundFigures
from testbed.run.directory import RunDirectory
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology

#: The bound changes with the network, so it is solved for this many rounds spread over the run; each takes some 10 ms.
BOUND_ROUNDS = 32


#: The least number of rounds in a segment: means over its rounds describe it, and their bound may differ from that of
#: a single round.
LEAST_ROUNDS = 8

#: The most segments of a run; the bound is solved once for each, since the network changes.
MOST_SEGMENTS = 32


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rounds of a run. Times are Unix seconds."""

    #: The number of rounds.
    rounds: int
    #: The end of the round before the first, and the end of the last.
    began_s: float
    ended_s: float
    #: The mean seconds of each member between receiving a round's mean and entering the next round.
    compute_s: Mapping[str, float]


def segments_of(rounds: Sequence[RoundFigures], reports: Sequence[Record]) -> list[Segment]:
    """Return the rounds after the first in segments of about equal length; empty for fewer than two rounds."""
    count = max(1, min(MOST_SEGMENTS, len(rounds) // LEAST_ROUNDS))
    ends = [rounds[number * (len(rounds) - 1) // count] for number in range(count + 1)] if rounds else []
    finished = {(report["member"], report["round"]): report["finished_s"] for report in reports}
    found = []
    for before, last in pairwise(ends):
        gaps: dict[str, list[float]] = {}
        for report in reports:
            came_s = finished.get((report["member"], report["round"] - 1))
            if before.number < report["round"] <= last.number and came_s is not None:
                gaps.setdefault(report["member"], []).append(report["started_s"] - came_s)
        compute_s = {member: fmean(own) for member, own in gaps.items()}
        if compute_s:
            found.append(Segment(last.number - before.number, before.finished_s, last.finished_s, compute_s))
    return found


def mean_states(segment: Segment, before: Mapping[str, LinkState], records: Sequence[Record]) -> dict[str, LinkState]:
    """Return each link's mean rate and least delay over a segment, as one state, by the link's name.

    A link that was down throughout stays down; while a link was down or lost every packet, its rate counts as 0.
    `before` has the states when the segment began, `records` the lines of `links.jsonl`.
    """
    changes: dict[str, list[Record]] = {name: [] for name in before}
    for record in records:  # once for all links: an hour of traces has a million
        if segment.began_s < record["at_s"] < segment.ended_s and record["link"] in changes and "rate_bps" in record:
            changes[record["link"]].append(record)
    found = {}
    for name, first in before.items():
        own = changes[name]
        times = [segment.began_s, *(record["at_s"] for record in own), segment.ended_s]
        carries = [first.rate_bps * (first.up and first.loss < 1)]
        rates = [*carries, *(record["rate_bps"] * (record["up"] and record["loss"] < 1) for record in own)]
        bits = sum(rate * (until - since) for rate, (since, until) in zip(rates, pairwise(times), strict=True))
        mean = bits / (segment.ended_s - segment.began_s)
        delay_s = min([first.delay_s, *(record["delay_s"] for record in own)])
        found[name] = LinkState(mean or first.rate_bps, delay_s, up=mean > 0)
    return found


def bounds_of(
    experiment: Experiment,
    states: Sequence[Mapping[str, Any]],
    network_swaps: Sequence[Mapping[str, Any]],
    rounds: Sequence[RoundFigures],
) -> dict[int, float]:
    """Return the bound in seconds, by round, for rounds spread over the run.

    Each round is bounded for the network as it was when the round began: by the swaps, with times in Unix seconds, and
    by `states`, the lines of `links.jsonl`.
    """
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
    found: Sequence[Segment],
) -> dict[str, float | None]:
    """Return the lower bound of a round's seconds, delays included, and the ratio of the measured rounds to it.

    Both are means over the rounds of the segments, and None if no segment has a bound. A segment in which the network
    was swapped, or a link went down or up, is left out: routes differ within it. The other arguments are those of
    `bounds_of`.
    """
    took_s = least_s = 0.0
    counted = 0
    newest: Bound | None = None
    for segment in found:
        if any(segment.began_s < swap["active_s"] <= segment.ended_s for swap in network_swaps):
            continue
        topology = _topology_at(experiment, network_swaps, segment.began_s)
        before = _states_at(states, topology, segment.began_s)
        if _reroutes(segment, before, states):
            continue
        passed = mean_states(segment, before, states)
        known = _view(experiment, topology, passed, segment.began_s)
        try:
            newest = bound(known, newest)
        except BoundError:
            continue  # an outage had cut the network in two
        period_s = least_period(known, segment.compute_s, newest)
        took_s += segment.ended_s - segment.began_s
        least_s += segment.rounds * period_s
        counted += segment.rounds
    return {
        "lower_bound_seconds": least_s / counted if counted else None,
        "ratio_to_lower_bound": took_s / least_s if least_s else None,
    }


def _reroutes(segment: Segment, before: Mapping[str, LinkState], records: Sequence[Record]) -> bool:
    """Return whether a link goes down or up during a segment."""
    return any(
        segment.began_s < record["at_s"] < segment.ended_s
        and record["link"] in before
        and record.get("up", before[record["link"]].up) != before[record["link"]].up
        for record in records
    )


def provable(experiment: Experiment, directory: RunDirectory) -> bool:
    """Return whether each step used the exact gradients of all members; only then the lower bound holds."""
    if not experiment.spec.sync.own.exact:
        return False
    return not any(plan.groups or plan.codec != PLAIN_CODEC or plan.link_codecs for plan in _plans(directory))


def has_one_bound(experiment: Experiment, directory: RunDirectory) -> bool:
    """Return whether all members exchanged equally many bytes in each round; only then one bound holds for each."""
    sync = experiment.spec.sync
    if sync.own.uneven:
        return False
    return not any(plan.groups or plan.codec != sync.codec or plan.link_codecs for plan in _plans(directory))


def _plans(directory: RunDirectory) -> Iterator[Plan]:
    for file in directory.path.glob("plans/*.json"):
        yield Plan.from_json(json.loads(file.read_text(encoding="utf-8")))


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
    states, newest = view.declared_states(topology), dict[str, Mapping[str, Any]]()
    for record in records:
        if record["at_s"] > at_s:
            break
        if "rate_bps" in record:  # a link that a swap removed keeps its last state until the swap counts
            newest[record["link"]] = record
    for link in states.keys() & newest.keys():
        rate_bps, delay_s, loss, up = (newest[link][name] for name in ("rate_bps", "delay_s", "loss", "up"))
        states[link] = LinkState(rate_bps, delay_s, loss=loss, up=up)
    return states
