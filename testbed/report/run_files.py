"""The files of a run's directory, read once. A file that a crash left out or cut short becomes a gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from testbed.atomic_file import UNFINISHED, unfinished
from testbed.errors import BAD_INPUT, DetailedError
from testbed.plan import Plan
from testbed.protocol import Report
from testbed.report import text
from testbed.report.link_states import StateLine
from testbed.run.conclusion.summary_fields import check_summary
from testbed.schema import Moment, ProtocolError, convert_to
from testbed.telemetry.store import in_newest_format, read_json, read_lines

F = TypeVar("F", bound="RunFiles")

#: Without the trains of packets, which are most of the file: `replanning` reads these one by one.
_REPORT_FIELDS = frozenset(Report.__struct_fields__) - {"arrivals"}


class NotARun(DetailedError, ValueError):
    """The given folder was not written by a run."""

    exit_code = BAD_INPUT


class SyncSpec(msgspec.Struct):
    """The field that reports read of an experiment's `sync`."""

    options: dict[str, Any] | None = None


class SpecFields(msgspec.Struct):
    """The fields that reports and pages read of a manifest's `spec`."""

    train: dict[str, Any] | None = None
    controller: dict[str, Any] | None = None
    sync: SyncSpec | None = None


class HostFields(msgspec.Struct):
    """The fields that reports read of a manifest's `host`."""

    memory_bytes: float | None = None
    versions: dict[str, str] | None = None


class ManifestFields(msgspec.Struct):
    """The fields of a manifest that reports and pages read. A manifest may lack some, and has others, too."""

    spec: SpecFields | None = None
    inputs: dict[str, str] | None = None
    training_started_s: Moment | None = None
    started_s: Moment | None = None
    ended_s: Moment | None = None
    host: HostFields | None = None
    offload: bool | str | None = None
    git_commit: str | None = None
    added_workers: list[dict[str, Any]] | None = None
    membership_events: list[dict[str, Any]] | None = None


class TimedLine(msgspec.Struct, gc=False):
    """The field that a line of a file over time needs, such as `decisions.jsonl`. Lines have others, too."""

    at_s: float


class EventLine(TimedLine, gc=False):
    """The fields that a line of `events.jsonl` needs."""

    kind: str
    target: str


class CurveLine(TimedLine, gc=False):
    """The fields that a line of `curves.jsonl` needs."""

    program: str
    values: dict[str, float | None]


class EstimateLine(TimedLine, gc=False):
    """The fields that a line of `estimates.jsonl` needs."""

    links: dict[str, dict[str, Any]]


class TrafficLine(TimedLine, gc=False):
    """The fields of a line of `traffic.jsonl`. Runs of earlier versions lack the steady counters."""

    bytes: dict[str, int]
    busy_s: dict[str, float] | None = None
    cpu: float | None = None
    steady_bytes: dict[str, int] | None = None
    steady_s: dict[str, float] | None = None


class RoundLine(msgspec.Struct, gc=False):
    """The fields that a line of `rounds.jsonl` needs."""

    member: str
    round: int


def first_start(path: Path, started: Sequence[float]) -> float:
    """Return when the first round began (Unix seconds), given when each round began.

    Without rounds, it is when a link last got another state: by then the network was up. Without links, it is 0.
    """
    if started:
        return min(started)
    states = (line for line in read_lines(path / "links.jsonl") if line is not None and fits(StateLine, line))
    return float(max((line["at_s"] for line in states), default=0.0))


def fits(kind: type[msgspec.Struct], record: Mapping[str, Any]) -> bool:
    """Return whether a record has the fields of a type, in their form. It may have others."""
    with suppress(ProtocolError):
        convert_to(kind, record)
        return True
    return False


def recorded_manifest(run: Path) -> Mapping[str, Any]:
    """Return the manifest of a run's directory.

    Raises:
        NotARun: There is no such directory, or it has no manifest of a run.
    """
    file, remedy = run / "manifest.json", "give the directory of a run, such as runs/latest"
    if not run.is_dir():
        raise NotARun(f"{run}: no such directory; {remedy}", rule="missing", file=run)
    try:
        manifest = read_json(file)
    except FileNotFoundError:
        raise NotARun(
            f"{run}: not a run, since it has no manifest.json; {remedy}", rule="no-manifest", file=run
        ) from None
    except ValueError as error:
        raise NotARun(f"{file}: not JSON ({error}); {remedy}", rule="json", file=file) from error
    try:
        convert_to(ManifestFields, manifest)
    except ProtocolError as error:
        raise NotARun(f"{file}: not the manifest of a run ({error}); {remedy}", rule="json", file=file) from None
    if "launch" in manifest and "spec" not in manifest:
        raise NotARun(
            f"{run}: `testbed launch` of an earlier version wrote no records for a page; launch again",
            rule="launch",
            file=run,
        )
    return in_newest_format(manifest)


def recorded_summary(run: Path) -> Mapping[str, Any]:
    """Return the summary of a run's directory; an empty one if the file is missing or damaged.

    Raises:
        NotARun: The file is JSON, but not the summary of a run.
    """
    file = run / "summary.json"
    try:
        summary = read_json(file)
    except (OSError, ValueError):
        return {}
    try:
        check_summary(summary)
    except ProtocolError as error:
        remedy = "give the directory as the run left it, or remove this file and see the run's other records"
        raise NotARun(f"{file}: not the summary of a run ({error}); {remedy}", rule="json", file=file) from None
    return in_newest_format(summary)


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """The state of a link from `at_s` (seconds since training began) to its next state."""

    at_s: float
    rate_bps: float
    delay_s: float
    loss: float = 0.0
    up: bool = True
    #: False once the link was removed.
    there: bool = True

    @property
    def passes(self) -> bool:
        """True if the link was up and not removed; its rate and loss do not count."""
        return self.up and self.there


@dataclass(frozen=True, slots=True)
class TrafficRecord:
    """The counters of all links, and the load of the host, at `at_s` (seconds since training began)."""

    at_s: float
    #: Bytes that had arrived over each link.
    bytes: Mapping[str, int]
    #: Seconds for which each link's queue had been backlogged.
    busy_s: Mapping[str, float]
    #: The busy share of the host's processors in the second before, from 0 to 1.
    cpu: float | None
    #: The bytes and the seconds of backlogs that were long enough to show a link's rate.
    steady_bytes: Mapping[str, int]
    steady_s: Mapping[str, float]


@dataclass(frozen=True)
class RunFiles:
    """The files of a run. Times in `reports` are Unix seconds; all others are seconds since training began."""

    path: Path
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    #: Link -> its states, in order.
    states: Mapping[str, tuple[LinkRecord, ...]]
    samples: tuple[TrafficRecord, ...]
    events: tuple[Mapping[str, Any], ...]
    reports: tuple[Report, ...]
    decisions: tuple[Mapping[str, Any], ...]
    #: The controller's estimates over time: {`at_s`, `links`: link -> estimate}.
    estimates: tuple[Mapping[str, Any], ...]
    #: Epoch -> plan.
    plans: Mapping[int, Plan]
    #: When training began (Unix seconds).
    zero_s: float
    #: What is missing or could not be read, one sentence each.
    gaps: tuple[str, ...]
    #: Metrics that a `command` printed: name -> program -> (times, values). A name with a single value is left out.
    curves: Mapping[str, Mapping[str, tuple[list[float], list[float]]]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the run in a directory. Raises: NotARun: a run did not write it."""
        return _Reader(path).read(cls)


def is_of_command(manifest: Mapping[str, Any]) -> bool:
    """Return whether a command trained in the run with this manifest."""
    return "command" in ((manifest.get("spec") or {}).get("train") or {})


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._gaps: list[str] = []

    def read(self, kind: type[F]) -> F:
        manifest = recorded_manifest(self._path)
        reports = tuple(self._reports(optional=is_of_command(manifest)))
        zero = self._zero(manifest, reports)
        decisions = tuple(self._since(zero, "decisions.jsonl", TimedLine))
        # Earlier versions recorded estimates only with each decision.
        decided = tuple({"at_s": line["at_s"], "links": line.get("estimates") or {}} for line in decisions)
        return kind(
            path=self._path,
            manifest=manifest,
            summary=self._summary(),
            states=self._states(zero),
            samples=tuple(self._samples(zero)),
            events=tuple(self._since(zero, "events.jsonl", EventLine)),
            reports=reports,
            decisions=decisions,
            estimates=tuple(self._since(zero, "estimates.jsonl", EstimateLine)) or decided,
            plans=self._plans(considered=bool(decisions)),
            curves=self._curves(zero),
            zero_s=zero,
            gaps=(*self._gaps, *self._unwritten()),
        )

    def _summary(self) -> Mapping[str, Any]:
        summary = recorded_summary(self._path)
        if not summary:
            self._gaps.append("summary.json is missing or damaged")
        return summary

    def _zero(self, manifest: Mapping[str, Any], reports: tuple[Report, ...]) -> float:
        """Return when training began (Unix seconds), or the earliest known time of it."""
        if manifest.get("training_started_s"):
            return float(manifest["training_started_s"])
        since = "the first round" if reports else "the last change of a link"
        self._gaps.append(f"manifest.json lacks the start of training: times count from {since}")
        started = first_start(self._path, [report.started_s for report in reports])
        return started or float(manifest.get("started_s") or 0.0)

    def _lines(self, name: str, kind: type[msgspec.Struct], optional: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the records of a file that have the fields of `kind`; the others become gaps."""
        file = self._path / name
        if not file.exists():
            if not optional:
                self._gaps.append(f"{name} is missing")
            return
        torn = lacking = 0
        for record in read_lines(file):
            if record is None:
                torn += 1
            elif not fits(kind, record):
                lacking += 1
            else:
                yield record
        if torn:  # the last line, or a line after which a later process went on writing
            self._gaps.append(f"{name}: {text.count(torn, 'line')} cut short or damaged, left out")
        if lacking:
            self._gaps.append(f"{name}: {text.count(lacking, 'line')} with missing or wrong fields, left out")

    def _since(self, zero: float, name: str, kind: type[TimedLine]) -> Iterator[dict[str, Any]]:
        """Yield the records of an optional file, with their times since training began."""
        return ({**line, "at_s": line["at_s"] - zero} for line in self._lines(name, kind, optional=True))

    def _curves(self, zero: float) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
        curves: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        # Figures that a program logged for TensorBoard follow what all programs printed.
        for line in sorted(self._since(zero, "curves.jsonl", CurveLine), key=lambda line: line["at_s"]):
            for name, value in line["values"].items():
                if value is not None:
                    at, values = curves.setdefault(name, {}).setdefault(line["program"], ([], []))
                    at.append(line["at_s"])
                    values.append(value)
        return {name: each for name, each in curves.items() if any(len(at) > 1 for at, _ in each.values())}

    def _reports(self, optional: bool) -> Iterator[Report]:
        """Yield the members' reports. They are `optional` where a command trains, which reports nothing."""
        for line in self._lines("rounds.jsonl", RoundLine, optional=optional):
            known = {key: value for key, value in line.items() if key in _REPORT_FIELDS}
            try:
                report: Report = convert_to(Report, known)
            except ProtocolError as error:
                self._gaps.append(f"rounds.jsonl: {error}")
            else:
                yield report

    def _states(self, zero: float) -> dict[str, tuple[LinkRecord, ...]]:
        states: dict[str, list[LinkRecord]] = {}
        for line in self._lines("links.jsonl", StateLine):
            track, at = states.setdefault(line["link"], []), line["at_s"] - zero
            if line.get("removed"):
                track.append(LinkRecord(at, 0.0, track[-1].delay_s if track else 0.0, there=False))
            elif line.get("rate_bps") is not None:
                up = bool(line.get("up", True))
                delay, loss = line.get("delay_s") or 0.0, line.get("loss") or 0.0
                track.append(LinkRecord(at, line["rate_bps"], delay, loss, up))
        return {link: tuple(track) for link, track in states.items() if track}

    def _samples(self, zero: float) -> Iterator[TrafficRecord]:
        for line in self._lines("traffic.jsonl", TrafficLine):
            busy_s = line.get("busy_s") or {}
            # Runs before 26 November 2026 lack the steady counters: all that arrived stands in for them.
            steady_bytes, steady_s = line.get("steady_bytes") or line["bytes"], line.get("steady_s") or busy_s
            yield TrafficRecord(line["at_s"] - zero, line["bytes"], busy_s, line.get("cpu"), steady_bytes, steady_s)

    def _unwritten(self) -> Iterator[str]:
        for file in sorted(self._path.rglob(f"*{UNFINISHED}")):
            if (name := unfinished(file)) is not None:
                yield f"{file.with_name(name).relative_to(self._path).as_posix()} was being written"

    def _plans(self, considered: bool) -> dict[int, Plan]:
        """Return the plans by epoch. Where no plan was `considered`, members gossiped and no plan is missing."""
        plans = {}
        for file in sorted((self._path / "plans").glob("*.json")):
            try:
                plan = Plan.from_json(read_json(file))
            except (ValueError, AttributeError) as error:  # PlanError is a ValueError
                self._gaps.append(f"plans/{file.name}: {error}")
                continue
            plans[plan.epoch] = plan
        if considered and not plans:
            self._gaps.append("plans/ holds no plan")
        return plans
