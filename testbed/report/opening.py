"""The first screen of a report: three questions with their answers in sentences, the verdict, and the key figures."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from testbed.report import text
from testbed.report.record import RunRecord
from testbed.report.score import Score
from testbed.report.tables import Tone
from testbed.run.conclusion.summary import wan_bytes
from testbed.run.conclusion.verdict import RATE_TOLERANCE, RTT_TOLERANCE_S
from testbed.run.directory import RESERVE_BYTES, is_going_on
from testbed.spec.train import DATASETS
from testbed.telemetry.averages import percentile
from testbed.telemetry.round_span import MEANING

#: The most events in the opening; later ones are in the table of events only.
MOST_EVENTS = 8

#: Events as sentences, by kind; an event of any other kind is written as its kind and target.
_SENTENCES = {
    "down": "{} went down",
    "up": "{} came up",
    "change": "{} was changed",
    "left": "{} left",
    "came": "{} joined",
    "add": "{} was added",
    "kill": "{} was killed",
    "restart": "{} was restarted",
    "graph": "the communication graph became {}",
    "policy": "the policy became {}",
}

#: The answer to whether a run can be trusted, by its verdict; the reasons follow as a list.
_ANSWERS = {
    "trusted": "Yes: the emulation did what the files asked, within tolerance.",
    "suspect": "Only with care, for these reasons:",
    "simulated": "As a simulation only, for these reasons:",
    "unfinished": "The run was not judged, since it did not finish.",
}


@dataclass(frozen=True, slots=True)
class Badge:
    """The verdict of a run, with its reasons."""

    verdict: Literal["trusted", "suspect", "simulated", "unfinished"]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A figure in large print, with a detail below it."""

    name: str
    value: str
    detail: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A question that a report opens with, and the answer in sentences."""

    question: str
    #: Sentences; `items` are a list below the first.
    answer: tuple[str, ...]
    items: tuple[str, ...] = ()


def badge(record: RunRecord) -> Badge:
    """Return the run's verdict; `unfinished` for a run that did not finish."""
    if not record.finished:
        return Badge("unfinished", ended_early(record))
    verdict = record.summary.get("verdict")
    return Badge(verdict if verdict in _ANSWERS else "suspect", tuple(record.summary.get("reasons", ())))


def ended_early(record: RunRecord) -> tuple[str, ...]:
    """Return sentences on why a run has not finished: its reasons, or that it is still on, or when it was cut off."""
    return tuple(record.summary.get("reasons", ())) or tuple(_signs(record))


def _signs(record: RunRecord) -> Iterator[str]:
    manifest = record.manifest
    if is_going_on(manifest):
        yield f"the run is still on, in process {manifest['process']['pid']}; these are its records so far"
        return
    yield f"the run was cut off {_stage(record)}; these are its records up to then"
    if shutil.disk_usage(record.path).free < RESERVE_BYTES:
        yield "the disk of the run's directory is full now"


def _stage(record: RunRecord) -> str:
    if "backend" not in record.manifest:
        return "before its network was built"
    if "training_started_s" not in record.manifest:
        return "before training began"
    if "ended_s" in record.manifest:
        return "after training had ended, before its summary was written"
    if record.of_command:
        return f"{record.end_s:.0f} s after its command began"
    asked = (record.spec.get("train") or {}).get("rounds", "an unknown number")
    return f"{record.end_s:.0f} s into training, with {len(record.rounds)} of {asked} rounds complete"


def opening(record: RunRecord, score: Score | None) -> list[Part]:
    """Return the questions that a run's report opens with, answered."""
    return [
        _happened(record),
        _trusted(record),
        Part("What was it compared with?", tuple(_compared(record, score))),
    ]


def _happened(record: RunRecord) -> Part:
    sentences = [_trained(record)]
    if not record.finished:
        sentences.insert(0, f"This run has not finished: {'; '.join(ended_early(record))}.")
    if record.planned:
        swaps = sum(mark.kind == "plan" for mark in record.marks)
        lost, doubled = updates(record)
        fate = f"{text.count(lost, 'update')} lost, {doubled} counted twice" if lost or doubled else "no update lost"
        sentences.append(f"The controller swapped the plan {text.count(swaps, 'time')}; {fate}.")
    return Part("What happened?", tuple(sentences), tuple(_events(record)))


def updates(record: RunRecord) -> tuple[int, int]:
    """Return the number of updates that were lost, and of those that were counted twice."""
    return sum(one.lost for one in record.reports), sum(one.duplicated for one in record.reports)


def _trained(record: RunRecord) -> str:
    train: Mapping[str, Any] = record.spec.get("train") or {}
    training = record.section("training")
    took = text.seconds(training.get("wall_seconds", record.end_s or None))
    if record.of_command:
        if "training_started_s" not in record.manifest:
            return "The command did not begin."
        rounds = f", and made {text.count(len(record.rounds), 'round')} by plans" if record.rounds else ""
        return f"A command ran on the workers for {took}{rounds}."
    workers = f"{text.count(len(record.members), 'worker')} at {text.count(len(record.sites), 'site')}"
    name = str(train.get("model") or "")
    learned = train.get("dataset") or DATASETS.get(name, ("none",))[0]
    model = (f" {name}" if name else "") + (f" on {learned}" if learned != "none" else "")
    rounds = text.count(training.get("rounds", len(record.rounds)), "round")
    accuracy, loss = _last(record, "accuracy"), _last(record, "loss")
    reached = [] if accuracy is None else [f"{text.percent(accuracy, 1)} test accuracy"]
    reached += [] if loss is None else [f"a loss of {text.number(loss)}"]
    end = f", to {' and '.join(reached)}" if reached else ""
    return f"{workers} trained{model} for {rounds} in {took}{end}."


def _last(record: RunRecord, metric: str) -> float | None:
    """Return the final value of a metric by the summary, or else by the members' reports."""
    values = record.metric(metric)[1]
    found = record.section("training").get(f"final_{metric}", values[-1] if values else None)
    return None if found is None else float(found)


def _events(record: RunRecord) -> list[str]:
    found = [(mark.at_s, "the network was swapped") for mark in record.marks if mark.kind == "network"]
    found += [(max(event["at_s"], 0.0), _event(event)) for event in record.happened if event["kind"] != "swap"]
    lines = [line for _, line in sorted((at_s, f"{at_s:.0f} s: {words}") for at_s, words in found)]
    more = len(lines) - MOST_EVENTS
    return [*lines[:MOST_EVENTS], *([f"{more} more in the table of events"] if more > 0 else [])]


def _event(event: Mapping[str, Any]) -> str:
    kind, target = event["kind"], event["target"]
    if event.get("after_bps") is not None:
        verb = "dropped" if kind == "drop" else "rose"
        rates = f"from {text.mbit(event['before_bps'])} to {text.mbit(event['after_bps'])} Mbit/s"
        return f"{target} {verb} {rates}, by its trace"
    words = _SENTENCES.get(kind, f"{kind} {{}}").format(target)
    return f"{words} by hand" if event.get("by") == "hand" else words


def _trusted(record: RunRecord) -> Part:
    verdict = badge(record)
    rest = list(_fidelity(record))
    if "not_judged" in record.summary:
        rest.append(f"Not judged: {'; '.join(record.summary['not_judged'])}.")
    reasons = verdict.reasons if verdict.verdict != "unfinished" else ()
    return Part("Can it be trusted?", (_ANSWERS[verdict.verdict], *rest), reasons)


def _fidelity(record: RunRecord) -> Iterator[str]:
    """Yield a sentence on the largest errors of the links' rates and round trips, if they were measured."""
    backend, links = str(record.manifest.get("backend")), record.section("links").values()
    rates, trips = (_known(links, name) for name in ("rate_error_pct", "rtt_error_ms"))
    if rates and trips and backend in RATE_TOLERANCE:
        tolerance = text.percent(RATE_TOLERANCE[backend])
        if max(rates) > RATE_TOLERANCE[backend] * 100 and (coarse := _known(links, "rate_resolution_pct")):
            tolerance += f", and up to {text.number(max(coarse), 2)} % more on links that are measured less finely"
        yield (
            f"The measured rates of {len(rates)} of {text.count(len(links), 'link')} were within "
            f"{text.number(max(rates), 2)} % of the requested ones (tolerance {tolerance}) "
            f"and the measured round trips of {len(trips)} within {text.number(max(trips), 2)} ms (tolerance "
            f"{RTT_TOLERANCE_S[backend] * 1e3:g} ms)."
        )


def _known(links: Iterable[Mapping[str, float | None]], name: str) -> list[float]:
    return [abs(value) for link in links if (value := link.get(name)) is not None]


def _compared(record: RunRecord, score: Score | None) -> Iterator[str]:
    sync = record.section("sync")
    lower, ratio = sync.get("lower_bound_seconds"), sync.get("ratio_to_lower_bound")
    if lower and ratio:
        yield (
            f"With the lower bound: whole rounds, computing included, took {text.number(ratio)} times the "
            f"{text.seconds(lower)} that any synchronous scheme without compression needs."
        )
    bound, over = sync.get("bound_seconds"), sync.get("ratio_to_bound")
    if bound and over:
        yield (
            f"With the bound: a round, {MEANING}, took {text.number(over)} times the {text.seconds(bound)} that the "
            "bytes of any plan need over links without delay."
        )
    if not (lower and ratio) and not (bound and over):
        yield "With no bound, since the run has none."
    if score is not None and score.swaps and score.promised is not None and score.brought is not None:
        yield (
            f"With what the controller predicted: swaps promised to save {text.percent(score.promised)} of a whole "
            f"round at the median, and rounds became {text.saving(score.brought)}."
        )
    yield "With no other run: `testbed compare` makes several, and `testbed report RUN RUN` sets them side by side."


def comparison_opening(records: Sequence[RunRecord], labels: Sequence[str]) -> list[Part]:
    """Return the questions that a comparison's page opens with, answered."""
    doubtful = [label for label, record in zip(labels, records, strict=True) if badge(record).verdict != "trusted"]
    trusted = len(records) - len(doubtful)
    trust = [f"{trusted} of {text.count(len(records), 'run')} {'is' if trusted == 1 else 'are'} trusted."]
    if doubtful:
        trust.append(f"Read with care: {', '.join(doubtful)}.")
    outcomes = tuple(_outcomes(records, labels)) or ("No two runs have figures that can be compared.",)
    return [
        Part("What happened?", outcomes),
        Part("Can it be trusted?", tuple(trust)),
        Part("What was compared with what?", (_differing(records),)),
    ]


def _outcomes(records: Sequence[RunRecord], labels: Sequence[str]) -> Iterator[str]:
    for what, values in (
        (f"The median round, {MEANING},", [median_round_s(record) for record in records]),
        ("The whole training", [record.section("training").get("wall_seconds") for record in records]),
    ):
        known = sorted((value, label) for value, label in zip(values, labels, strict=True) if value)
        if len(known) < 2:
            continue
        (least, best), (most, worst) = known[0], known[-1]
        yield (
            f"{what} was the shortest in {best} with {text.seconds(least)}, and {text.number(most / least)} times as "
            f"long in {worst} ({text.seconds(most)})."
        )


def median_round_s(record: RunRecord) -> float | None:
    """Return the median duration of a round in seconds, by the summary; None where it has none."""
    found = (record.section("sync").get("seconds_per_round") or {}).get("p50")
    return None if found is None else float(found)


def _differing(records: Sequence[RunRecord]) -> str:
    experiments = sorted({str(record.manifest.get("experiment")) for record in records})
    policies = list(dict.fromkeys(record.policy for record in records))
    seeds = list(dict.fromkeys(str(record.manifest.get("seed")) for record in records))
    return (
        f"{text.count(len(records), 'run')} of {', '.join(experiments)}: {_plural('policy', 'policies', policies)}; "
        f"{_plural('seed', 'seeds', seeds)}."
    )


def _plural(one: str, several: str, values: Sequence[str]) -> str:
    return f"{one if len(values) == 1 else several} {', '.join(values)}"


def key_figures(record: RunRecord) -> list[KeyFigure]:
    """Return the key figures of a run, of its summary or, where that is missing, of its records."""
    training, sync = record.section("training"), record.section("sync")
    swaps = Counter(mark.kind for mark in record.marks)
    times = [round_.seconds for round_ in record.rounds]
    seconds: Mapping[str, Any] = sync.get("seconds_per_round") or {
        "p50": percentile(times, 50),
        "p95": percentile(times, 95),
    }
    carried = sync.get("wan_bytes")
    if carried is None and record.samples:
        carried = wan_bytes([{"at_s": s.at_s, "bytes": s.bytes} for s in record.samples], 0.0)
    took = text.seconds(training.get("wall_seconds", record.end_s or None))
    if record.of_command:
        by_plans = [
            KeyFigure("rounds by plans", str(len(record.rounds)), text.count(len(record.members), "member")),
            KeyFigure("median round", text.seconds(seconds.get("p50")), text.count(swaps["plan"], "plan swap")),
        ]
        return [
            KeyFigure("run time of the command", took, "wall time"),
            *(by_plans if record.rounds else ()),  # nothing is known of the rounds of other commands
            KeyFigure("over the WAN", text.size(carried), "rendezvous included"),
            KeyFigure("network swaps", str(swaps["network"])),
        ]
    asked = (record.spec.get("train") or {}).get("rounds")
    lost, doubled = updates(record)
    rounds = training.get("rounds", len(record.rounds))
    figures = [
        KeyFigure(
            "test accuracy", text.percent(_last(record, "accuracy"), 1), f"loss {text.number(_last(record, 'loss'))}"
        ),
        KeyFigure(
            "rounds",
            str(rounds),
            f"of {asked}" if asked and asked != rounds else text.count(len(record.members), "member"),
        ),
        KeyFigure("training time", took, "wall time"),
        KeyFigure("median round", text.seconds(seconds.get("p50")), f"95 % within {text.seconds(seconds.get('p95'))}"),
        KeyFigure(
            "over the lower bound",
            text.times(sync.get("ratio_to_lower_bound")),
            f"lower bound {text.seconds(sync.get('lower_bound_seconds'))}, end to end",
        ),
        KeyFigure(
            "over the bound",
            text.times(sync.get("ratio_to_bound")),
            f"bound {text.seconds(sync.get('bound_seconds'))}, without delays",
        ),
        KeyFigure(
            "over the WAN",
            text.size(carried),
            f"{text.size(carried / rounds if carried and rounds else None)} per round",
        ),
        KeyFigure("plan swaps", str(swaps["plan"]), text.count(swaps["network"], "network swap")),
        KeyFigure("lost updates", str(lost), f"{doubled} counted twice", "bad" if lost or doubled else ""),
    ]
    return [figure for figure in figures if figure.value != text.UNKNOWN]
