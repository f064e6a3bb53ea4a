"""The figures of a run's summary, computed from its records, and the summary's lines in the terminal. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from testbed.controller.model.plan_history import pause_ms
from testbed.run.conclusion.verdict import SIMULATED
from testbed.spec.units import count
from testbed.telemetry.averages import mean_if_all, percentile
from testbed.telemetry.round_span import MEANING, RoundSpan, span_of
from testbed.workload import STEP_OVERRUN

Record = Mapping[str, Any]

#: The longest time before the first byte on a link that counts as a command's start and not as training: torchrun
#: imports PyTorch twice, on a host that is busy with several workers.
START_S = 30.0


@dataclass(frozen=True, slots=True)
class RoundFigures(RoundSpan):
    """One round over all members."""

    number: int
    epoch: int
    lost: int
    duplicated: int


def rounds_of(reports: Sequence[Record], members: int) -> list[RoundFigures]:
    """Return the rounds that at least `members` members reported, in order."""
    by_round: dict[int, list[Record]] = {}
    for report in reports:
        by_round.setdefault(report["round"], []).append(report)
    return [_figures(number, found) for number, found in sorted(by_round.items()) if len(found) >= members]


def _figures(number: int, reports: Sequence[Record]) -> RoundFigures:
    span = span_of((report["started_s"], report["finished_s"]) for report in reports)
    return RoundFigures(
        number=number,
        epoch=max(report["epoch"] for report in reports),
        entered_s=span.entered_s,
        finished_s=span.finished_s,
        lost=sum(report["lost"] for report in reports),
        duplicated=sum(report["duplicated"] for report in reports),
    )


def fewest(members: int, membership_events: Sequence[Record]) -> int:
    """Return the smallest number of members at any time, which is the least number of reports of a complete round.

    `members` is their number at the beginning; the departures and arrivals are in order.
    """
    there = [members]
    for event in membership_events:
        there.append(there[-1] + (1 if event["kind"] == "came" else -1))
    return min(there)


def pause_around(rounds: Sequence[RoundFigures], began_s: float, ended_s: float) -> float | None:
    """Return the pause in milliseconds (`pause_ms`) of the rounds that ended in [began_s, ended_s] (Unix seconds)."""
    finished = [r.finished_s for r in rounds]
    return pause_ms(finished, bisect_left(finished, began_s), bisect_left(finished, ended_s))


def pause_at(rounds: Sequence[RoundFigures], number: int) -> float | None:
    """Return the pause in milliseconds (`pause_ms`) of round `number`, the first under its plan."""
    return pause_ms([r.finished_s for r in rounds], bisect_left([r.number for r in rounds], number))


def updates_around(rounds: Sequence[RoundFigures], began_s: float, ended_s: float) -> tuple[int, int]:
    """Return the (lost, duplicated) updates of the rounds that overlap [began_s, ended_s], and of the next round."""
    touched = [r for r in rounds if r.finished_s >= began_s and r.entered_s <= ended_s]
    touched += [r for r in rounds if r.entered_s > ended_s][:1]
    return sum(r.lost for r in touched), sum(r.duplicated for r in touched)


def late_part(reports: Sequence[Record], declared: Mapping[str, float]) -> float:
    """Return the fraction of the steps that took longer than declared; 0 if no step was reported.

    Reports of earlier versions do not count steps. Each of them counts as one step, with the lateness of its worst one.

    Args:
        reports: The lines of `rounds.jsonl`.
        declared: Member -> the declared seconds of its steps; 0 if none are declared.
    """
    paced = [report for report in reports if declared[report["member"]] > 0]
    if steps := sum(report.get("steps", 0) for report in paced):
        return float(sum(report["late_steps"] for report in paced) / steps)
    late = [report["late_s"] > STEP_OVERRUN * declared[report["member"]] for report in paced]
    return fmean(late) if late else 0.0


def last_metric(reports: Sequence[Record], name: str) -> float | None:
    """Return a metric's mean over the members that reported it in the newest round in which any did, or None.

    A value that is not finite, such as the loss of a training that diverged, is recorded as None; then so is the mean.
    """
    found = [(r["round"], r["metrics"][name]) for r in reports if name in r["metrics"]]
    newest = max((number for number, _ in found), default=None)
    return mean_if_all(value for number, value in found if number == newest)


def start_seconds(samples: Sequence[Record], began_s: float) -> float:
    """Return the seconds from `began_s` until the programs first used a link, START_S at most.

    The resolution is one second, the time between samples.
    """
    last: Mapping[str, int] = {}
    for number, sample in enumerate(samples):
        used = any(count > last.get(link, 0) for link, count in sample["bytes"].items())
        if number > 0 and used and sample["at_s"] >= began_s:
            return _start_until(samples[number - 1], began_s)
        last = sample["bytes"]
    return _start_until(samples[-1], began_s) if samples else 0.0


def _start_until(sample: Record, began_s: float) -> float:
    return min(START_S, max(0.0, float(sample["at_s"]) - began_s))


def wan_bytes(samples: Sequence[Record], began_s: float) -> int:
    """Return the bytes that arrived over all WAN links from `began_s` (Unix seconds) on.

    The first sample is the starting point. The counter of a link that is made or replaced later starts at 0. Samples
    are in order, so all that follow one from `began_s` on count, also if the clock was set back between them.
    """
    total, last, began = 0, dict[str, int](), False
    for number, sample in enumerate(samples):
        began = began or sample["at_s"] >= began_s
        for link, size in sample["bytes"].items():
            since = last.get(link, 0)
            if number > 0 and began:
                total += size - since if size >= since else size
            last[link] = size
    return total


def seconds_per_iteration(final: Record, reports: Sequence[Record]) -> list[float]:
    """Return the seconds of every iteration of a gossip run, those of all members in one list.

    The time in which a member skipped iterations is divided among them. A restarted member made no iterations while it
    was away, and repeats some if it was ahead of the others. Each member's reports are in the order in which it made
    them.
    """
    entered: dict[str, int] = {}
    seconds: list[float] = []
    came = [(swap["joins"], swap["first"]) for swap in final["graph_swaps"] if swap["joins"] and swap["first"]]
    for report in reports:
        member, number = report["member"], report["round"]
        firsts = [first for comer, first in came if comer == member and first < number]
        before = entered.get(member, 0)
        made = number - max([before if before < number else 0, *firsts])
        entered[member] = number
        seconds += [(report["finished_s"] - report["started_s"]) / made] * made
    return seconds


def gossip_training(final: Record, reports: Sequence[Record]) -> dict[str, Any]:
    """Return the fields of the summary's `training` of a gossip run: means over the members' models, which differ.

    A loss is None if the model of one member diverged.
    """
    of_members = (report for report in reports if report["member"] in final["members"])  # not of those that were lost
    newest = {report["member"]: report["metrics"]["loss"] for report in of_members if "loss" in report["metrics"]}
    ends = [member["metrics"] for member in final["members"].values()]
    return {
        "rounds": final["rounds"],
        "final_loss": mean_if_all(newest.values()),
        "final_test_loss": mean_if_all(metrics["test_loss"] for metrics in ends if "test_loss" in metrics),
        "final_accuracy": mean_if_all(metrics["accuracy"] for metrics in ends if "accuracy" in metrics),
    }


def gossip_sync(final: Record, reports: Sequence[Record], batch: int) -> dict[str, Any]:
    """Return the fields of the summary's `sync` of a gossip run.

    Args:
        final: The controller's final record.
        reports: The lines of `rounds.jsonl`.
        batch: Samples a step.

    Returns:
        `iterations_per_second`: of one member, until the slowest member's end. `samples_per_second`: of all members.
        `goodput`: the fraction of the samples a second that they would process if no member ever waited.
        `changes_per_merge`: the members' changes that a syncer merged at a time. `gap`: the widest iteration gaps and
        their bounds.
    """
    seconds = seconds_per_iteration(final, reports)
    ended = {report["member"]: report["finished_s"] for report in reports}
    began = min((report["started_s"] for report in reports), default=0.0)
    took = max(ended.values(), default=0.0) - began
    return {
        "seconds_per_round": {"p50": percentile(seconds, 50), "p95": percentile(seconds, 95)},
        "iterations_per_second": final["rounds"] / took if took > 0 else None,
        **_goodput(reports, batch, took),
        "changes_per_merge": last_metric(reports, "changes_per_merge"),
        "gap": final["gaps"],
    }


def _goodput(reports: Sequence[Record], batch: int, took: float) -> dict[str, float | None]:
    steps: defaultdict[str, float] = defaultdict(float)
    stepping: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        steps[report["member"]] += report["metrics"].get("steps") or 0.0
        stepping[report["member"]] += report["compute_s"] + report["paced_s"]
    own = sum(batch * count / stepping[member] for member, count in steps.items() if stepping[member])
    total = batch * sum(steps.values()) / took if took > 0 else 0.0
    return {"samples_per_second": total or None, "goodput": total / own if own else None}


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines that the terminal shows of a run's `summary.json`."""
    if "not_judged" in summary:
        swaps = sum(swap["kind"] == "network" for swap in summary["swaps"])
        training = summary["training"]
        took = f"the command ended on all workers after {training['wall_seconds']:.0f} s"
        if (start_s := training.get("start_seconds") or 0.0) >= 1.0 and summary["sync"].get("wan_bytes", 1):
            more = " or more" if start_s >= START_S else ""
            took += f", {start_s:.0f} s{more} of them before the first byte went over a link"
        figures = [took, *_planned(summary), count(swaps, "network swap")]
        return ["; ".join(figures), *(f"not judged: {what}" for what in summary["not_judged"])]
    training, sync, swaps = summary["training"], summary["sync"], summary["swaps"]
    loss, accuracy = training["final_loss"], training["final_accuracy"]
    learned = [f"loss {loss:.4f}"] if loss is not None else []
    learned += [f"test accuracy {accuracy:.1%}"] if accuracy is not None else []
    seconds = sync["seconds_per_round"]
    ratios = {"lower bound, end to end": sync["ratio_to_lower_bound"], "bound without delays": sync["ratio_to_bound"]}
    compared = [f"{ratio:.2f} times the {name}" for name, ratio in ratios.items() if ratio is not None]
    lost = training["lost_updates"] + training["duplicated_updates"]
    kinds = [swap["kind"] for swap in swaps]
    gap, identical = sync.get("gap"), training["identical_parameters"]
    unit, end = "iteration" if gap else "round", "the workers' parameters DIFFER"
    if summary["verdict"] == SIMULATED and identical is None:
        end = "nothing was trained"
    elif identical:
        end = "all workers hold identical parameters"
    elif gap and identical is None:
        end = f"workers were at most {count(gap['widest'], 'iteration')} apart"
    return [
        "; ".join([f"{count(training['rounds'], unit)} in {training['wall_seconds']:.0f} s", *learned, end]),
        f"{unit}: {seconds['p50']:.2f} s at the median, {seconds['p95']:.2f} s at the 95th percentile"
        + ("" if gap else f" ({MEANING})"),
        *(["; ".join(compared)] if compared else []),
        f"{count(kinds.count('plan'), 'plan swap')}, {count(kinds.count('network'), 'network swap')}, "
        f"{count(lost, 'update')} lost or doubled",
    ]


def _planned(summary: Mapping[str, Any]) -> list[str]:
    """Return the rounds that a command's programs made by a controller's plans, in words; empty if none."""
    rounds, seconds = summary["training"]["rounds"], summary["sync"]["seconds_per_round"]
    if not rounds:
        return []
    swaps = sum(swap["kind"] == "plan" for swap in summary["swaps"])
    return [f"{count(rounds, 'round')} by plans, {seconds['p50']:.2f} s at the median", count(swaps, "plan swap")]
