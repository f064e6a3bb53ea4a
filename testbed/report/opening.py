"""What a report opens with: what happened, whether it can be trusted, and what it was compared with, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.report import tables, text
from testbed.report.ending import ended_early
from testbed.report.member import site_of
from testbed.report.record import RunRecord
from testbed.report.replanning import Score
from testbed.run.conclusion.verdict import RATE_TOLERANCE, RTT_TOLERANCE_S
from testbed.telemetry.round_span import MEANING

#: More events than these are left to the table of events.
MOST_EVENTS = 8

#: What happened, as a verb; other kinds are written as they are.
_VERBS = {"down": "went down", "up": "came up", "left": "left", "came": "came", "change": "was changed"}


@dataclass(frozen=True, slots=True)
class Part:
    """A question, and its answer in sentences, the first of which a list may explain."""

    question: str
    answer: tuple[str, ...]
    items: tuple[str, ...] = ()


def opening(record: RunRecord, score: Score | None) -> list[Part]:
    """The parts of a run's report that come first."""
    return [
        _happened(record),
        _trusted(record),
        Part("What was it compared with?", tuple(_compared(record, score))),
    ]


def _happened(record: RunRecord) -> Part:
    if record.finished:
        told, rest = _trained(record), []
    else:
        told, rest = f"This run has not come to its end: {'; '.join(ended_early(record))}.", [_trained(record)]
    if record.planned:
        swaps = [mark for mark in record.marks if mark.kind == "plan"]
        lost, doubled = (sum(getattr(one, name) for one in record.reports) for name in ("lost", "duplicated"))
        updates = f"{lost} updates were lost and {doubled} counted twice" if lost or doubled else "no update was lost"
        rest.append(f"The controller put {text.count(len(swaps), 'other plan')} in force; {updates}.")
    return Part("What happened?", (told, *rest), tuple(_events(record)))


def _trained(record: RunRecord) -> str:
    train: Mapping[str, Any] = record.spec.get("train") or {}
    training = record.section("training")
    took = text.seconds(training.get("wall_seconds", record.end_s or None))
    if record.summary.get("not_judged"):
        return f"A command ran on the workers, for {took}."
    sites = {site_of(member) for member in record.members}
    who = f"{text.count(len(record.members), 'worker')} at {text.count(len(sites), 'site')}"
    what = f" {train['model']} on {train['dataset']}" if train.get("model") and train.get("dataset") else ""
    rounds = text.count(training.get("rounds", len(record.rounds)), "round")
    came = [
        f"{text.percent(accuracy, 1)} test accuracy" if (accuracy := _last(record, "accuracy")) is not None else "",
        f"a loss of {text.number(loss)}" if (loss := _last(record, "loss")) is not None else "",
    ]
    end = " and ".join(filter(None, came))
    return f"{who} trained{what} for {rounds} in {took}{f', to {end}' if end else ''}."


def _last(record: RunRecord, metric: str) -> float | None:
    """The final value by the summary, or the last of the records."""
    values = record.metric(metric)[1]
    found = record.section("training").get(f"final_{metric}", values[-1] if values else None)
    return None if found is None else float(found)


def _events(record: RunRecord) -> list[str]:
    networks = [mark for mark in record.marks if mark.kind == "network"]
    told = [(mark.at_s, f"{mark.at_s:.0f} s: the network was swapped for another") for mark in networks]
    for event in record.happened:
        if event["kind"] == "swap":
            continue
        at_s, kind, target = max(event["at_s"], 0.0), event["kind"], event["target"]
        if event.get("after_bps") is not None:
            verb = "dropped" if kind == "drop" else "rose"
            rates = f"from {text.mbit(event['before_bps'])} to {text.mbit(event['after_bps'])} Mbit/s"
            told.append((at_s, f"{at_s:.0f} s: {target} {verb} {rates}, by its trace"))
        else:
            by = ", by hand" if event.get("by") == "hand" else ""
            words = f"{target} {_VERBS[kind]}" if kind in _VERBS else f"{kind} {target}"
            told.append((at_s, f"{at_s:.0f} s: {words}{by}"))
    lines = [each for _, each in sorted(told)]
    more = len(lines) - MOST_EVENTS
    return [*lines[:MOST_EVENTS], *([f"and {more} more, in the table of events"] if more > 0 else [])]


#: What is said of a verdict before its reasons.
_VERDICTS = {
    "trusted": "Yes: the emulation did what the files asked, within tolerance.",
    "suspect": "With care. Why these figures may mislead:",
    "simulated": "As a simulation. Why these figures may mislead:",
    "unfinished": "It was not judged, since it did not come to its end.",
}


def _trusted(record: RunRecord) -> Part:
    badge = tables.badge(record)
    rest = list(_fidelity(record))
    if "not_judged" in record.summary:
        rest.append(f"Not judged: {'; '.join(record.summary['not_judged'])}.")
    reasons = badge.reasons if badge.verdict != "unfinished" else ()
    return Part("Can it be trusted?", (_VERDICTS[badge.verdict], *rest), reasons)


def _fidelity(record: RunRecord) -> Iterator[str]:
    """How far links were off what was asked of them, at the worst."""
    backend, links = str(record.manifest.get("backend")), record.section("links").values()
    rates, trips = (_known(links, name) for name in ("rate_error_pct", "rtt_error_ms"))
    if rates and trips and backend in RATE_TOLERANCE:
        yield (
            f"Every link's rate was within {max(rates):.2g} % of what was asked ({RATE_TOLERANCE[backend]:.0%} is "
            f"allowed), and every round trip within {max(trips):.2g} ms ({RTT_TOLERANCE_S[backend] * 1e3:g} ms)."
        )


def _known(links: Iterable[Mapping[str, float | None]], name: str) -> list[float]:
    return [abs(value) for link in links if (value := link.get(name)) is not None]


def _compared(record: RunRecord, score: Score | None) -> Iterator[str]:
    sync = record.section("sync")
    lower, ratio = sync.get("lower_bound_seconds"), sync.get("ratio_to_lower_bound")
    if lower and ratio:
        yield (
            f"With the best that is possible: whole rounds, with the computing, took {ratio:.3g} times the "
            f"{text.seconds(lower)} that no synchronous scheme without compression can beat."
        )
    bound, over = sync.get("bound_seconds"), sync.get("ratio_to_bound")
    if bound and over:
        yield (
            f"With the bytes alone: a round, {MEANING}, took {over:.3g} times the {text.seconds(bound)} that the bytes "
            "of any plan need where nothing is delayed."
        )
    if not (lower and ratio) and not (bound and over):
        yield "With no bound: none is known for this run."
    if score is not None and score.swaps and score.promised is not None and score.brought is not None:
        yield (
            f"With what its controller foresaw: swaps promised to save {text.percent(score.promised)} of a whole round "
            f"at the median, and rounds became {_longer(score.brought)}."
        )
    yield "With no other run: `testbed compare` makes several, and `testbed report RUN RUN` sets them side by side."


def _longer(saved: float) -> str:
    return f"{text.percent(abs(saved))} {'shorter' if saved >= 0 else 'longer'}"


def comparison_opening(records: Sequence[RunRecord], labels: Sequence[str]) -> list[Part]:
    """The parts of a comparison's page that come first."""
    verdicts = [tables.badge(record).verdict for record in records]
    trusted = verdicts.count("trusted")
    doubtful = [label for label, verdict in zip(labels, verdicts, strict=True) if verdict != "trusted"]
    trust = [f"{trusted} of {text.count(len(records), 'run')} {'is' if trusted == 1 else 'are'} trusted."]
    if doubtful:
        trust.append(f"Read with care: {', '.join(doubtful)}.")
    return [
        Part(
            "What happened?", tuple(_outcomes(records, labels)) or ("No two runs have figures that can be compared.",)
        ),
        Part("Can it be trusted?", tuple(trust)),
        Part("What was compared with what?", (_differing(records),)),
    ]


def _outcomes(records: Sequence[RunRecord], labels: Sequence[str]) -> Iterator[str]:
    """Which run was the fastest, by its rounds and altogether, and by how much."""
    for what, values in (
        (f"the median round, {MEANING},", [_median_s(record) for record in records]),
        ("the whole training", [record.section("training").get("wall_seconds") for record in records]),
    ):
        known = sorted((value, label) for value, label in zip(values, labels, strict=True) if value)
        if len(known) < 2:
            continue
        (least, best), (most, worst) = known[0], known[-1]
        yield (
            f"{what[:1].upper()}{what[1:]} was the shortest in {best} with {text.seconds(least)}, and "
            f"{most / least:.3g} times as long in {worst} ({text.seconds(most)})."
        )


def _median_s(record: RunRecord) -> float | None:
    found = (record.section("sync").get("seconds_per_round") or {}).get("p50")
    return None if found is None else float(found)


def _differing(records: Sequence[RunRecord]) -> str:
    experiments = sorted({str(record.manifest.get("experiment")) for record in records})
    policies = list(dict.fromkeys(record.policy for record in records))
    seeds = list(dict.fromkeys(str(record.manifest.get("seed")) for record in records))
    return (
        f"{text.count(len(records), 'run')} of {', '.join(experiments)}: "
        f"by {', '.join(policies)}; seed {', '.join(seeds)}."
    )
