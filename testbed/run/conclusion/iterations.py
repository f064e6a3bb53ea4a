"""What a decentralized run comes to, from its members' reports and the controller's last word. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed.run.conclusion.summary import last_metric, percentile

Record = Mapping[str, Any]


def seconds_per_iteration(final: Record, reports: Sequence[Record]) -> list[float]:
    """How long each member's each iteration took; one that leapt over others shares its time with them.

    A member that died and came again made none in between.
    """
    entered: dict[str, int] = {}
    seconds: list[float] = []
    came = [(swap["joins"], swap["first"]) for swap in final["graph_swaps"] if swap["joins"] and swap["first"]]
    for report in sorted(reports, key=lambda one: int(one["round"])):
        member, number = report["member"], report["round"]
        firsts = [first for comer, first in came if comer == member and first < number]
        made = number - max([entered.get(member, 0), *firsts])
        entered[member] = number
        seconds += [(report["finished_s"] - report["started_s"]) / made] * made
    return seconds


def training(final: Record, reports: Sequence[Record]) -> dict[str, Any]:
    """What the summary's `training` says otherwise: means over the members' own models, which differ."""
    newest = {report["member"]: report["metrics"].get("loss") for report in reports}
    return {
        "rounds": final["rounds"],
        "final_loss": _mean(newest.values()),
        "final_test_loss": _mean(member["metrics"].get("test_loss") for member in final["members"].values()),
        "final_accuracy": _mean(member["metrics"].get("accuracy") for member in final["members"].values()),
    }


def sync(final: Record, reports: Sequence[Record], batch: int) -> dict[str, Any]:
    """What the summary's `sync` says in place of rounds and their bound.

    `iterations_per_second` is a member's, up to the slowest's end; `samples_per_second` all members' together, of steps
    on batches of `batch`, and `goodput` the part that this is of what they would learn from if none ever waited;
    `changes_per_merge` how many members' changes a syncer merged at a time; `gap` the widest iteration gaps and their
    bounds.
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
        "lower_bound_seconds": None,
        "ratio_to_lower_bound": None,
        "bound_seconds": None,
        "ratio_to_bound": None,
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


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
