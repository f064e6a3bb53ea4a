"""Makes a run's summary, with the bounds and the verdict, from its records and outcome."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile, pairwise
from operator import itemgetter
from statistics import median
from typing import Any

from testbed.planning.bound import MOST_BOUNDED
from testbed.run.conclusion import drift, summary
from testbed.run.conclusion.bounds import bounds_of, has_one_bound, lower_bound, provable, segments_of
from testbed.run.conclusion.link_counters import rate_excess
from testbed.run.conclusion.summary import RoundFigures
from testbed.run.conclusion.verdict import Evidence, LinkEvidence, Verdict, judge, unused_links
from testbed.run.directory import RunDirectory
from testbed.run.programs.program_controller import POLICY
from testbed.run.training import Outcome
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology
from testbed.telemetry.averages import percentile
from testbed.telemetry.store import FORMAT
from testbed.trace.trace import Trace

log = logging.getLogger(__name__)

#: What the verdict can't judge if a command trains.
NOT_JUDGED = (
    "the workers' compute: a command declares no step time",
    "the trained model: a command does not report it",
)

#: The keys of `rounds.jsonl` that no figure uses. They are most of its bytes: a run of hours has GiB of them.
UNUSED = ("arrivals", "peers", "slices")


def conclude(experiment: Experiment, directory: RunDirectory, outcome: Outcome) -> dict[str, Any]:
    """Write `summary.json`, and return its value."""
    reports = directory.read("rounds.jsonl", without=UNUSED)
    traffic = directory.read("traffic.jsonl")
    program = experiment.spec.program
    members = len(experiment.topology.workers if program is None else program.commands(experiment.topology))
    rounds = summary.rounds_of(reports, summary.fewest(members, outcome.status["membership_events"]))
    began = outcome.training_started_s
    identical = _identical(directory)
    # Those of a network split over hosts are in order at each host alone.
    states = sorted(directory.read("links.jsonl", without=("jitter_s", "discipline")), key=itemgetter("at_s"))
    events = [{**event, "at_s": event["at_s"] - began} for event in directory.read("events.jsonl")]
    evidence = replace(
        _evidence(experiment, outcome, reports, traffic, states, rounds, identical),
        by_hand=[*outcome.by_hand, *_by_hand(events)],
    )
    verdict = judge(evidence)
    sync = experiment.spec.sync
    centred = sync.scheme.exchange == "all-reduce"
    # A program's all-reduces have different sizes, and iterations of gossip have no bound. The others' bounds are of
    # the workers that the run began with.
    lasting = not outcome.status["membership_events"]
    bounded = centred and program is None and members <= MOST_BOUNDED and lasting
    even = bounded and has_one_bound(experiment, directory)
    bounds = bounds_of(experiment, states, outcome.network_swaps, rounds) if even else {}
    ratios = [r.seconds / bounds[r.number] for r in rounds if bounds.get(r.number)]
    proven = bounded and provable(experiment, directory)
    seconds = [r.seconds for r in rounds]
    value: dict[str, Any] = {
        **_opening(verdict),
        "training": {
            "rounds": len(rounds),
            "lost_updates": evidence.lost_updates,
            "duplicated_updates": evidence.duplicated_updates,
            "final_loss": summary.last_metric(reports, "loss"),
            "final_accuracy": summary.last_metric(reports, "accuracy"),
            "wall_seconds": outcome.training_ended_s - began,
            "identical_parameters": identical if sync.scheme.alike else None,
        },
        "sync": {
            "policy": sync.policy if sync.scheme.planned else None,
            "strategy": sync.strategy,
            "seconds_per_round": {"p50": percentile(seconds, 50), "p95": percentile(seconds, 95)},
            "wan_bytes": summary.wan_bytes(traffic, began),
            **lower_bound(experiment, states, outcome.network_swaps, segments_of(rounds, reports) if proven else ()),
            "bound_seconds": median(bounds.values()) if bounds else None,
            "ratio_to_bound": median(ratios) if ratios else None,
            "drift": drift.summary(drift.merges(reports, lambda _: _sites(experiment, outcome))),
        },
        "swaps": _swaps(outcome, rounds),
        "events": [event for event in events if event["kind"] != "swap"],
        "links": {name: _link(link) for name, link in evidence.links.items()},
    }
    if not centred:
        final = directory.read_whole("final.json") or {}
        value["training"] |= summary.gossip_training(final, reports)
        value["sync"] |= summary.gossip_sync(final, reports, experiment.spec.own_train.batch)
    if program is not None:
        value["training"]["identical_parameters"] = None
        value["training"]["start_seconds"] = summary.start_seconds(traffic, began)
        value["sync"] |= {"policy": POLICY if program.planned else None, "strategy": program.scheme}
        value["not_judged"] = [*NOT_JUDGED, *outcome.not_judged]
        value |= _of_programs(directory)
    directory.use_reserve()
    directory.write("summary.json", value)
    return value


def _of_programs(directory: RunDirectory) -> dict[str, Any]:
    """Return the manifest's entries on programs that have ended: exit codes, files, and how their controller ended."""
    manifest = directory.read_whole("manifest.json") or {}
    return {name: manifest[name] for name in ("exit_codes", "kept", "wan", "scheme") if name in manifest}


def _topology(experiment: Experiment, outcome: Outcome) -> Topology:
    """Return the experiment's topology with the workers that were added."""
    topology = experiment.topology
    for added in outcome.added_workers:
        topology = topology.with_worker(added["site"])
    return topology


def _sites(experiment: Experiment, outcome: Outcome) -> dict[str, list[str]]:
    topology = _topology(experiment, outcome)
    return {site: [its.name for its in topology.workers if its.site == site] for site in topology.sites}


def failed(directory: RunDirectory, reason: str) -> None:
    """Write the summary of a run that did not finish: all fields of `summary.json`, without figures.

    A summary that exists already stays. A disk error is logged and not raised, since the caller is about to raise the
    error that ended the run.
    """
    if (directory.path / "summary.json").exists():
        return
    value = {
        **_opening(Verdict("suspect", (reason,))),
        "training": dict.fromkeys(
            ("rounds", "lost_updates", "duplicated_updates", "final_loss", "final_accuracy", "wall_seconds")
        ),
        "sync": {
            **dict.fromkeys(("policy", "strategy", "wan_bytes")),
            **dict.fromkeys(("lower_bound_seconds", "ratio_to_lower_bound", "bound_seconds", "ratio_to_bound")),
            "seconds_per_round": {"p50": None, "p95": None},
        },
        "swaps": [],
        "events": [],
        "links": {},
        **_of_programs(directory),
    }
    try:
        directory.use_reserve()
        directory.write("summary.json", value)
    except OSError as error:
        log.error("summary.json can't be written: %s", error)


def _opening(verdict: Verdict) -> dict[str, Any]:
    reasons, notes = list(verdict.reasons), list(verdict.notes)
    return {"format": FORMAT, "verdict": verdict.verdict, "reasons": reasons, "notes": notes}


def _identical(directory: RunDirectory) -> bool | None:
    final = directory.read_whole("final.json")
    return None if final is None or final["identical"] is None else bool(final["identical"])


def _evidence(
    experiment: Experiment,
    outcome: Outcome,
    reports: Sequence[Mapping[str, Any]],
    traffic: Sequence[Mapping[str, Any]],
    states: Sequence[Mapping[str, Any]],
    rounds: Sequence[RoundFigures],
    identical: bool | None,
) -> Evidence:
    # A network whose swap did not happen replays nothing; a run that was shortened may miss a swap.
    came = (experiment.networks[file] for swap in outcome.network_swaps if (file := swap["file"]) is not None)
    every = (link for topology in (experiment.topology, *came) for link in topology.links.values())
    traces = [(link.name, link.trace) for link in every if link.trace is not None]
    traced = {name for name, _ in traces}
    coarse = {name for name, trace in traces if outcome.backend == "userspace" and _has_coarse_rows(trace)}
    passed = {name: excess for name, excess in rate_excess(traffic, states).items() if name not in coarse}
    links = {}
    for name, measured in sorted(outcome.fidelity.items()):
        rates = [] if measured.rate_error is None else [(measured.rate_error, measured.rate_resolution)]
        rates += [(outcome.rate_errors[name], 0.0)] if name in outcome.rate_errors else []
        rates += [(passed[name], 0.0)] if name in passed else []
        worst = max(rates, key=lambda rate: abs(rate[0]) - rate[1], default=(None, 0.0))
        links[name] = LinkEvidence(
            rate_error=worst[0],
            rtt_error_s=measured.rtt_error_s,
            replay_late_p99_s=percentile(outcome.lateness.get(name, ()), 99),
            unreplayed=name in traced and name not in outcome.lateness,
            rate_resolution=worst[1],
            unshaped_bytes=sum(sample.get("unshaped_bytes", {}).get(name, 0) for sample in traffic),
        )
    declared = {w.name: experiment.spec.compute.step_seconds(w) for w in _topology(experiment, outcome).workers}
    started_s, program, host = outcome.training_started_s, experiment.spec.program, traffic
    if program is not None:
        started_s += summary.start_seconds(traffic, started_s)
        # All samples that follow the start count, also if the clock was set back between them.
        host = list(dropwhile(lambda sample: sample["at_s"] <= started_s, traffic))
        declared = dict.fromkeys(declared, 0.0)
    return Evidence(
        backend=outcome.backend,
        links=links,
        cpu=[sample["cpu"] for sample in host],
        late_steps=summary.late_part(reports, declared),
        lost_updates=sum(r.lost for r in rounds),
        duplicated_updates=sum(r.duplicated for r in rounds),
        identical_parameters=identical,
        missed_events=outcome.missed_events,
        shortened_from=experiment.shortened_from,
        alike=program is None and experiment.spec.sync.scheme.alike,
        hosts=outcome.host_reasons,
        idle=[why for why in (*outcome.idle, _unused_links(experiment, outcome, traffic)) if why],
    )


def _has_coarse_rows(trace: Trace) -> bool:
    """Return whether rows are means over so long that the single opportunities served carry more in a few seconds."""
    return trace.opportunities is not None and any(b.time_s - a.time_s > 1 for a, b in pairwise(trace.rows))


def _unused_links(experiment: Experiment, outcome: Outcome, traffic: Sequence[Mapping[str, Any]]) -> str:
    """Return why no link was used, or an empty text if one was."""
    program, workers = experiment.spec.program, _topology(experiment, outcome).workers
    commands = None if program is None else program.commands(experiment.topology)
    sites = sorted({worker.site for worker in workers if commands is None or worker.name in commands})
    return unused_links(outcome.fidelity, sites, summary.wan_bytes(traffic, outcome.training_started_s))


def _by_hand(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the changes that people made, in words."""
    return [
        f"{event['kind']} {event['target']} at {event['at_s']:.0f} s" for event in events if event.get("by") == "hand"
    ]


def _link(link: LinkEvidence) -> dict[str, float | None]:
    def scaled(value: float | None, factor: float) -> float | None:
        return None if value is None else value * factor

    return {
        "rate_error_pct": scaled(link.rate_error, 100),
        "rate_resolution_pct": link.rate_resolution * 100,
        "rtt_error_ms": scaled(link.rtt_error_s, 1e3),
        "replay_late_ms_p99": scaled(link.replay_late_p99_s, 1e3),
    }


def _swaps(outcome: Outcome, rounds: Sequence[RoundFigures]) -> list[dict[str, Any]]:
    """Return plan and network swaps in the order of their requests; times are seconds since training began."""
    swaps = [
        {**swap, "kind": "plan", "pause_ms": summary.pause_at(rounds, swap["active_round"])}
        for swap in outcome.status["swaps"]
        if swap["active_s"] is not None
    ]
    for swap in outcome.network_swaps:
        lost, duplicated = summary.updates_around(rounds, swap["requested_s"], swap["active_s"])
        pause = summary.pause_around(rounds, swap["requested_s"], swap["active_s"])
        figures = {"pause_ms": pause, "lost_updates": lost, "duplicated_updates": duplicated, "epoch": None}
        swaps.append({**swap, **figures})
    for swap in swaps:
        for moment in ("requested_s", "held_s", "active_s"):
            if swap.get(moment) is not None:
                swap[moment] -= outcome.training_started_s
    return sorted(swaps, key=lambda swap: swap["requested_s"])
