"""The tables of a page: what a run came to, in rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from testbed.report import text
from testbed.report.ending import ended_early
from testbed.report.estimates import estimate_errors
from testbed.report.member import site_of
from testbed.report.record import RunRecord
from testbed.report.replanning import Score
from testbed.report.series import backlogged
from testbed.run.conclusion.summary import percentile, wan_bytes
from testbed.run.conclusion.verdict import RATE_TOLERANCE, REPLAY_LATE_P99_S, RTT_TOLERANCE_S

Tone = Literal["", "bad", "muted"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table; `bad` past a tolerance."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns are (heading, whether it holds numbers)."""

    name: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A figure that the page opens with; `detail` is said below it."""

    name: str
    value: str
    detail: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Badge:
    """The verdict and why."""

    verdict: Literal["trusted", "suspect", "simulated", "unfinished"]
    reasons: tuple[str, ...] = field(default=())


def _table(name: str, columns: Sequence[str], rows: Iterable[Sequence[Cell | str]], words: int = 1) -> Table:
    """A table whose columns hold numbers but for the first `words`."""
    cells = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    return Table(name, tuple((column, index >= words) for index, column in enumerate(columns)), cells)


def badge(record: RunRecord) -> Badge:
    """The run's verdict; `unfinished` when it ended early."""
    if not record.finished:
        return Badge("unfinished", ended_early(record))
    reasons = tuple(record.summary.get("reasons", ()))
    match record.summary.get("verdict"):
        case "trusted":
            return Badge("trusted", reasons)
        case "simulated":
            return Badge("simulated", reasons)
    return Badge("suspect", reasons)


def key_figures(record: RunRecord) -> list[KeyFigure]:
    """What the page opens with: of the summary, or of the records where a run left none."""
    if record.summary.get("not_judged"):
        return _key_figures_of_program(record)
    training, sync = record.section("training"), record.section("sync")
    times = [round_.seconds for round_ in record.rounds]
    rate: Mapping[str, Any] = sync.get("seconds_per_round") or {
        "p50": percentile(times, 50),
        "p95": percentile(times, 95),
    }
    accuracy, loss = record.metric("accuracy")[1], record.metric("loss")[1]
    last_accuracy = training.get("final_accuracy", accuracy[-1] if accuracy else None)
    last_loss = training.get("final_loss", loss[-1] if loss else None)
    carried = sync.get("wan_bytes")
    if carried is None and record.samples:
        carried = wan_bytes([{"at_s": s.at_s, "bytes": s.bytes} for s in record.samples], 0.0)
    asked = (record.spec.get("train") or {}).get("rounds")
    swaps = Counter(mark.kind for mark in record.marks)
    lost, doubled = sum(r.lost for r in record.reports), sum(r.duplicated for r in record.reports)
    rounds = training.get("rounds", len(record.rounds))
    figures = [
        KeyFigure("test accuracy", text.percent(last_accuracy, 1), f"loss {text.number(last_loss)}"),
        KeyFigure(
            "rounds", str(rounds), f"of {asked}" if asked and asked != rounds else f"{len(record.members)} members"
        ),
        KeyFigure("training took", text.seconds(training.get("wall_seconds", record.end_s or None)), "wall time"),
        KeyFigure("a round, median", text.seconds(rate["p50"]), f"95 % within {text.seconds(rate['p95'])}"),
        KeyFigure(
            "over the lower bound",
            text.times(sync.get("ratio_to_lower_bound")),
            f"which is {text.seconds(sync.get('lower_bound_seconds'))}, end to end",
        ),
        KeyFigure(
            "over the bound",
            text.times(sync.get("ratio_to_bound")),
            f"which is {text.seconds(sync.get('bound_seconds'))}, without delays",
        ),
        KeyFigure(
            "over the WAN", text.size(carried), f"{text.size(carried / rounds if carried and rounds else None)} a round"
        ),
        KeyFigure("plan swaps", str(swaps["plan"]), text.count(swaps["network"], "network swap")),
        KeyFigure("updates lost", str(lost), f"{doubled} counted twice", "bad" if lost or doubled else ""),
    ]
    return [figure for figure in figures if figure.value != text.UNKNOWN]


def _key_figures_of_program(record: RunRecord) -> list[KeyFigure]:
    """Of a run whose training is not ours: nothing is known of its rounds."""
    swaps = Counter(mark.kind for mark in record.marks)["network"]
    return [
        KeyFigure("the command took", text.seconds(record.section("training").get("wall_seconds")), "wall time"),
        KeyFigure("over the WAN", text.size(record.section("sync").get("wan_bytes")), "rendezvous included"),
        KeyFigure("network swaps", str(swaps)),
    ]


def known(scores: Mapping[str, Score]) -> Table | None:
    """How far what was known of links was off, in a row for each run by its label; a single one needs none."""
    return _scores("Known of links", Score.KNOWN, {label: one.known_cells() for label, one in scores.items()})


def foreseen(scores: Mapping[str, Score]) -> Table | None:
    """How predictions came true and what swaps brought, of the runs in which plans were considered."""
    considered = {label: one for label, one in scores.items() if one.calibration or one.swaps}
    return _scores("Foreseen and done", Score.DONE, {label: one.done_cells() for label, one in considered.items()})


def _scores(name: str, columns: Sequence[str], cells: Mapping[str, Sequence[str]]) -> Table | None:
    if not cells:
        return None
    if "" in cells:
        return _table(name, columns, cells.values(), words=0)
    return _table(name, ("run", *columns), ((label, *own) for label, own in cells.items()))


def swaps(record: RunRecord, score: Score | None) -> Table | None:
    """Every swap: when it was asked for and in force, what it cost and why it was made, and of those that have a score
    the part of a round that they promised to save and what they did save."""
    why = {line["epoch"]: line.get("why", "") for line in record.decisions if line.get("epoch") is not None}
    scores = {one.epoch: one for one in score.swaps} if score else {}
    rows: list[Sequence[Cell | str]] = []
    for swap in _swaps(record):
        lost, doubled = swap.get("lost_updates"), swap.get("duplicated_updates")
        name = f"plan {swap['epoch']}" if swap["kind"] == "plan" else "network"
        asked, active, pause = swap.get("requested_s"), swap.get("active_s"), swap.get("pause_ms")
        own = scores.get(swap["epoch"]) if swap["kind"] == "plan" else None
        saved = (own.promised, own.brought) if own else (None, None)
        rows.append(
            (
                Cell(name),
                Cell(why.get(swap.get("epoch"), "") if swap["kind"] == "plan" else "as the experiment says", "muted"),
                _clock(asked),
                _clock(active),
                text.seconds(active - asked) if active is not None and asked is not None else text.UNKNOWN,
                text.UNKNOWN if pause is None else f"{pause:.0f} ms",
                *(text.percent(part) for part in saved if scores),
                Cell(text.UNKNOWN if lost is None else f"{lost} / {doubled}", "bad" if lost or doubled else ""),
            )
        )
    outcome = ("promised", "brought") if scores else ()
    columns = ("swap", "why", "asked for at", "in force at", "took", "pause", *outcome, "lost / doubled")
    return _table("Swaps", columns, rows, words=2) if rows else None


def _swaps(record: RunRecord) -> Iterator[Mapping[str, Any]]:
    """Of the summary; of a run that left none the plans that came into force, as far as its records say."""
    if record.finished:
        yield from record.summary.get("swaps", ())
        return
    for line in record.decisions:
        if line.get("last") is not None and line.get("epoch") in record.epochs:
            active_s = record.since(record.epochs[line["epoch"]][0].entered_s)
            yield {"kind": "plan", "epoch": line["epoch"], "requested_s": line["at_s"], "active_s": active_s}


def considered(record: RunRecord) -> str:
    """In a sentence, how often the controller looked for another plan."""
    if not record.decisions:
        return ""
    later = [line for line in record.decisions if line.get("epoch") != 0]  # the first plan is no swap
    adopted = sum(bool(line.get("adopted")) for line in later)
    looked = text.count(len(later), "time")
    return f"The controller looked for another plan {looked} and adopted one {text.count(adopted, 'time')}."


def events(record: RunRecord) -> Table | None:
    """What happened to the network meanwhile, by the experiment's file, by hand and by traces."""
    rows = [
        (_clock(event["at_s"]), event["kind"], str(event["target"]), text.event_figures(event))
        for event in record.happened
    ]
    return _table("Events", ("at", "event", "target", "by"), rows, words=4) if rows else None


def _clock(at_s: float | None) -> str:
    return text.UNKNOWN if at_s is None else f"{max(at_s, 0.0):.1f} s"  # the first plan is decided on before 0 s


def links(record: RunRecord) -> Table | None:
    """Every link: what was asked of it, what it carried, and its errors against the backend's tolerance."""
    if not record.states:
        return None
    errors = record.section("links")
    believed = estimate_errors(record)
    carried = _carried(record)
    backend = str(record.manifest.get("backend"))
    rate_limit, rtt_limit = RATE_TOLERANCE.get(backend), RTT_TOLERANCE_S.get(backend)
    rows = []
    for link, states in record.states.items():
        rates = [state.rate_bps for state in states if state.passes]
        busy = backlogged(record.samples, link).mean(0.0, record.end_s)
        found = errors.get(link, {})
        rows.append(
            (
                Cell(link.replace("->", " → ")),
                _range(rates),
                f"{states[-1].delay_s * 1e3:.3g}",
                text.size(carried.get(link)),
                text.UNKNOWN if busy != busy else text.percent(busy),
                f"{median(map(abs, believed[link].off)) * 100:.1f}" if link in believed else text.UNKNOWN,
                _error(found.get("rate_error_pct"), rate_limit and rate_limit * 100, "{:+.2f}"),
                _error(found.get("rtt_error_ms"), rtt_limit and rtt_limit * 1e3, "{:+.2f}"),
                _error(found.get("replay_late_ms_p99"), REPLAY_LATE_P99_S * 1e3, "{:.2f}"),
            )
        )
    columns = (
        "link",
        "rate asked, Mbit/s",
        "delay, ms",
        "carried",
        "backlogged",
        "estimate off, % (median)",
        f"rate error, % (≤ {rate_limit * 100:g})" if rate_limit else "rate error, %",
        f"round trip error, ms (≤ {rtt_limit * 1e3:g})" if rtt_limit else "round trip error, ms",
        f"replay late p99, ms (≤ {REPLAY_LATE_P99_S * 1e3:g})",
    )
    return _table("Links", columns, rows)


def _carried(record: RunRecord) -> dict[str, int]:
    """Bytes that arrived over each link since training began."""
    names = {link for sample in record.samples for link in sample.bytes}
    return {
        link: wan_bytes(
            [{"at_s": s.at_s, "bytes": {link: s.bytes[link]}} for s in record.samples if link in s.bytes], 0.0
        )
        for link in names
    }


def _range(rates: Sequence[float]) -> str:
    if not rates:
        return text.UNKNOWN
    low, high = text.mbit(min(rates)), text.mbit(max(rates))
    return low if low == high else f"{low}–{high}"


def _error(value: float | None, limit: float | None, form: str) -> Cell:
    if value is None:
        return Cell(text.UNKNOWN, "muted")
    return Cell(form.format(value), "bad" if limit is not None and not abs(value) <= limit else "")


def members(record: RunRecord) -> Table | None:
    """Every member: its step, its synchronization, its traffic."""
    rows = []
    for member in record.members:
        own = [report for report in record.reports if report.member == member]
        if not own:
            continue
        lost, doubled = sum(r.lost for r in own), sum(r.duplicated for r in own)
        rows.append(
            (
                member,
                site_of(member),
                str(len(own)),
                text.milliseconds(median(r.compute_s for r in own)),
                text.milliseconds(median(r.compute_s + r.paced_s for r in own)),
                text.milliseconds(max(r.late_s for r in own)),
                text.milliseconds(median(r.finished_s - r.started_s for r in own)),
                text.size(sum(r.sent_bytes for r in own)),
                text.size(sum(r.received_bytes for r in own)),
                str(sum(peer.retransmits for r in own for peer in r.peers)),
                Cell(f"{lost} / {doubled}", "bad" if lost or doubled else ""),
            )
        )
    columns = (
        "member",
        "site",
        "rounds",
        "computing",
        "step, paced",
        "latest step late by",
        "synchronizing",
        "sent",
        "received",
        "resent segments",
        "lost / doubled",
    )
    return _table("Members", columns, rows, words=2) if rows else None


def facts(record: RunRecord) -> dict[str, str]:
    """What was run, on what, with what."""
    manifest = record.manifest
    sync = record.section("sync") or record.spec.get("sync") or {}
    host: Mapping[str, Any] = manifest.get("host") or {}
    versions: Mapping[str, str] = host.get("versions") or {}
    found = {
        "experiment": manifest.get("experiment"),
        "policy": sync.get("policy"),
        "strategy": sync.get("strategy"),
        "backend": manifest.get("backend"),
        "scale": manifest.get("scale"),
        "seed": manifest.get("seed"),
        "congestion control": manifest.get("congestion_control"),
        "segmentation offload": {True: "on", False: "off"}.get(manifest.get("offload"), manifest.get("offload")),  # type: ignore[arg-type]
        "commit": _commit(manifest.get("git_commit")),
        "kernel": host.get("kernel"),
        "processors": host.get("cpus"),
        "memory": text.size(host["memory_bytes"]) if host.get("memory_bytes") else None,
        "Python": host.get("python"),
        "packages": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def settings(record: RunRecord) -> dict[str, str]:
    """The experiment's values by dotted path, as a `--set` would name them: `train.rounds`."""
    return dict(_flat(record.spec, ""))


def _flat(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for name, each in value.items():
        if isinstance(each, Mapping):
            yield from _flat(each, f"{path}{name}.")
        else:
            yield f"{path}{name}", str(each)


def _commit(commit: str | None) -> str | None:
    """Twelve characters, and in words when files differed from it."""
    return commit and commit[:12] + (", with changes" if commit.endswith("+") else "")


def of_scores(scores: Mapping[str, Score]) -> dict[str, Any]:
    """The tables of the runs that estimated links, by label, with what is to be said below them."""
    return {
        "known": known(scores),
        "known_notes": Score.KNOWN_NOTES,
        "foreseen": foreseen(scores),
        "foreseen_notes": Score.DONE_NOTES,
    }
