"""The tables of a run's page: swaps, choices of a scheme, events, links, members, and facts on the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from statistics import median
from typing import Any, Literal

from testbed.report import text
from testbed.report.record import RunRecord, site_of
from testbed.report.score import Score
from testbed.report.series import backlogged, estimate_errors
from testbed.run.conclusion.summary import wan_bytes
from testbed.run.conclusion.verdict import RATE_TOLERANCE, REPLAY_LATE_P99_S, RTT_TOLERANCE_S

Tone = Literal["", "bad", "muted"]

#: The heading of the updates that were lost and counted twice.
LOST = "updates lost / counted twice"


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of a table's cell; its tone is `bad` past a tolerance."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report's page."""

    name: str
    #: (Heading, whether the column holds numbers).
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[Cell, ...], ...]


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[Cell | str]], words: int = 1) -> Table:
    """Return a table; the first `words` columns hold text, the others numbers."""
    cells = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    return Table(name, tuple((column, index >= words) for index, column in enumerate(columns)), cells)


def swaps(record: RunRecord, score: Score | None) -> Table | None:
    """Return a row for each swap: its reason, times and cost, and its savings if it has a score."""
    reasons = {line["epoch"]: line.get("why", "") for line in record.decisions if line.get("epoch") is not None}
    scores = {one.epoch: one for one in score.swaps} if score else {}
    rows: list[Sequence[Cell | str]] = []
    for swap in _swaps(record):
        lost, doubled = swap.get("lost_updates"), swap.get("duplicated_updates")
        name = f"plan {swap.get('epoch')}" if swap["kind"] == "plan" else "network"
        asked, active, pause = swap.get("requested_s"), swap.get("active_s"), swap.get("pause_ms")
        own = scores.get(swap.get("epoch", -1)) if swap["kind"] == "plan" else None
        saved = (own.promised, own.brought) if own else (None, None)
        why = reasons.get(swap.get("epoch")) or swap.get("reason") or ""  # no decision tells of a lost member
        rows.append(
            (
                Cell(name),
                Cell(why if swap["kind"] == "plan" else "an event", "muted"),
                _clock(asked),
                _clock(active),
                text.seconds(active - asked) if active is not None and asked is not None else text.UNKNOWN,
                text.UNKNOWN if pause is None else f"{pause:.0f} ms",
                *(text.percent(part) for part in saved if scores),
                Cell(text.UNKNOWN if lost is None else f"{lost} / {doubled}", "bad" if lost or doubled else ""),
            )
        )
    outcome = ("saving promised", "saving measured") if scores else ()
    columns = ("swap", "reason", "requested at", "in force at", "took", "pause", *outcome, LOST)
    return table("Swaps", columns, rows, words=2) if rows else None


def _swaps(record: RunRecord) -> Iterator[Mapping[str, Any]]:
    """Yield the swaps of the summary; without a summary, the plans that came into force, from the records."""
    if record.finished:
        yield from record.summary.get("swaps", ())
        return
    for line in record.decisions:
        if line.get("last") is not None and line.get("epoch") in record.epochs:
            active_s = record.since(record.epochs[line["epoch"]][0].entered_s)
            yield {"kind": "plan", "epoch": line["epoch"], "requested_s": line["at_s"], "active_s": active_s}


def considered(record: RunRecord) -> str:
    """Return a sentence on how often the controller considered and adopted other plans."""
    if not record.decisions:
        return ""
    later = [line for line in record.decisions if line.get("epoch") != 0]  # the first plan is not a swap
    adopted = sum(bool(line.get("adopted")) for line in later)
    times = text.count(len(later), "time")
    return f"The controller considered another plan {times} and adopted one {text.count(adopted, 'time')}."


def events(record: RunRecord) -> Table | None:
    """Return a row for each event: those of the experiment's file, changes by hand, and steps of traces."""
    rows = [
        (_clock(event["at_s"]), event["kind"], str(event["target"]), text.event_cause(event))
        for event in record.happened
    ]
    return table("Events", ("at", "event", "target", "cause"), rows, words=4) if rows else None


def _clock(at_s: float | None) -> str:
    return text.UNKNOWN if at_s is None else f"{max(at_s, 0.0):.1f} s"  # the first plan is decided on before 0 s


def links(record: RunRecord) -> Table | None:
    """Return a row for each link: its requested rate and delay, its bytes, and its errors against the tolerances."""
    if not record.states:
        return None
    errors = record.section("links")
    estimated = estimate_errors(record)
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
                link,
                _range(rates),
                text.number(states[-1].delay_s * 1e3),
                text.size(carried.get(link)),
                text.UNKNOWN if busy != busy else text.percent(busy),
                f"{median(map(abs, estimated[link].off)) * 100:.1f}" if link in estimated else text.UNKNOWN,
                _error(
                    found.get("rate_error_pct"),
                    rate_limit and rate_limit * 100 + (found.get("rate_resolution_pct") or 0.0),
                    "{:+.2f}",
                ),
                _error(found.get("rtt_error_ms"), rtt_limit and rtt_limit * 1e3, "{:+.2f}"),
                _error(found.get("replay_late_ms_p99"), REPLAY_LATE_P99_S * 1e3, "{:.2f}"),
            )
        )
    columns = (
        "link",
        "requested rate, Mbit/s",
        "delay, ms",
        "carried",
        "time backlogged",
        "estimate error, median, %",
        f"rate error, % (≤ {rate_limit * 100:g})" if rate_limit else "rate error, %",
        f"round trip error, ms (≤ {rtt_limit * 1e3:g})" if rtt_limit else "round trip error, ms",
        f"replay lateness p99, ms (≤ {REPLAY_LATE_P99_S * 1e3:g})",
    )
    return table("Links", columns, rows)


def _carried(record: RunRecord) -> dict[str, int]:
    names = {link for sample in record.samples for link in sample.bytes}
    return {
        link: wan_bytes(
            [{"at_s": s.at_s, "bytes": {link: s.bytes[link]} if link in s.bytes else {}} for s in record.samples], 0.0
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
    """Return a row for each member: its computing before a round, its synchronization, its traffic."""
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
                text.milliseconds(median(record.synchronizing_s(r) for r in own)),
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
        "computing with pacing",
        "longest step overrun",
        "synchronizing",
        "sent",
        "received",
        "retransmitted segments",
        LOST,
    )
    return table("Members", columns, rows, words=2) if rows else None


def facts(record: RunRecord) -> dict[str, str]:
    """Return the facts on a run, by name: the experiment, the seed, the host, the versions of packages."""
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
    """Return the experiment's values by dotted path, as `--set` names them: `train.rounds`."""
    return dict(_flat(record.spec, ""))


def _flat(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for name, each in value.items():
        if isinstance(each, Mapping):
            yield from _flat(each, f"{path}{name}.")
        else:
            yield f"{path}{name}", str(each)


def _commit(commit: str | None) -> str | None:
    """Return twelve characters of a commit, and whether files differed from it."""
    return commit and commit[:12] + (", with local changes" if commit.endswith("+") else "")


#: The first candidates of a judgement, which are shown beside the one in force, the chosen one and flat all-reduce.
SHOWN = 4

#: Flat all-reduce, as the controller names it.
FLAT = "gradients, fp32"


def choices(record: RunRecord) -> Table | None:
    """Return a row for each change of the training scheme; None where the experiment fixes the scheme."""
    judged = _judged(record)
    if not judged:
        return None
    rows = [
        (
            f"{line['at_s']:.1f} s",
            text.UNKNOWN if line["round"] is None else str(line["round"]),
            "trial" if line["training"]["trial"] else "choice",
            line["training"]["chosen"],
            Cell(line["training"]["why"], "muted"),
        )
        for line in judged
        if _changed(line)
    ]
    return table("Choices", ("at", "after round", "kind", "scheme", "reason"), rows, words=5)


def _judged(record: RunRecord) -> list[Mapping[str, Any]]:
    return [line for line in record.decisions if "training" in line]


def _changed(line: Mapping[str, Any]) -> bool:
    return bool(line["training"]["change"] and line["adopted"])


def judgements(record: RunRecord) -> list[Table]:
    """Return the terms of each judgement that changed the scheme, and of the last judgement."""
    judged = _judged(record)
    shown = [line for line in judged if _changed(line)]
    if judged and judged[-1] not in shown:
        shown.append(judged[-1])
    return [_terms(line) for line in shown]


def learned(record: RunRecord) -> str:
    """Return in a sentence what the last judgement was based on."""
    judged = _judged(record)
    if not judged:
        return ""
    its, drift = judged[-1]["training"]["learned"], judged[-1]["training"]["drift"]
    within = exp(its["horizon_spread"])
    found = (
        f"The last judgement is based on {text.count(round(its['losses']), 'loss')}: a member learns on its "
        f"own for about {its['horizon']:.0f} steps, known within a factor of {within:.1f}, before it needs the others."
    )
    if drift is not None:
        found += f" The members' distance from their mean was {drift:.1f} times the distance that the mean had moved."
    return found


def _terms(line: Mapping[str, Any]) -> Table:
    its = line["training"]
    columns = (
        *("time per step", "computing per step", "exchange per round", "worth of a step, in all-reduce steps"),
        *("known within", "time per all-reduce step's worth", "saving", "loss at the last sample"),
        "loss above all-reduce's, at most",
    )
    rows = tuple(_row(one) for one in _shown(its["terms"]))
    headings = (("candidate", False), *((name, True) for name in columns), ("verdict", False))
    return Table(f"At {line['at_s']:.1f} s: {its['why']}", headings, rows)


def _shown(terms: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for number, one in enumerate(terms):
        named = "chosen" in one["verdict"] or "in force" in one["verdict"] or one["candidate"] == FLAT
        if number < SHOWN or named:
            yield one


def _row(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        Cell(one["candidate"]),
        Cell(text.milliseconds(one["step_s"])),
        Cell(text.milliseconds(one["compute_s"])),
        Cell(text.milliseconds(one["exchange_s"])),
        Cell(f"{one['worth']:.2f}"),
        Cell(f"× {exp(one['spread']):.2f}"),
        Cell(text.milliseconds(one["effective_s"])),
        Cell(text.percent(one["saves"])),
        Cell(text.number(one["final_loss"])),
        Cell(text.percent(one["above"], 1)),
        Cell(one["verdict"], "muted"),
    )
