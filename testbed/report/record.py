"""A run as its directory recorded it: read once, and tolerant of what a crash left out or half written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import asdict

from testbed.atomic_file import UNFINISHED
from testbed.plan import Plan
from testbed.planning import View
from testbed.protocol import Report
from testbed.report import text
from testbed.report.errors import NotARun
from testbed.run.conclusion.summary import RoundFigures, fewest, rounds_of
from testbed.schema import ProtocolError, convert_to
from testbed.telemetry.rate_steps import RateStep, recorded_steps
from testbed.telemetry.store import read_lines

_REPORT_FIELDS = frozenset(Report.__struct_fields__)


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """What was in force on a link from `at_s` (seconds since training began) on; `there` is False once removed."""

    at_s: float
    rate_bps: float
    delay_s: float
    loss: float = 0.0
    up: bool = True
    there: bool = True

    @property
    def passes(self) -> bool:
        """Whether packets could pass."""
        return self.up and self.there


@dataclass(frozen=True, slots=True)
class TrafficRecord:
    """Counters at `at_s` (seconds since training began): bytes arrived and seconds backlogged by link, the busy share
    of the host's processors in the second before, and the bytes and seconds of the stretches with a queue that were
    long enough to tell a rate."""

    at_s: float
    bytes: Mapping[str, int]
    busy_s: Mapping[str, float]
    cpu: float | None
    steady_bytes: Mapping[str, int]
    steady_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to the run, `at_s` seconds after training began."""

    at_s: float
    kind: Literal["plan", "network", "event"]
    label: str
    #: The label where there is no room for the whole.
    short: str = ""


@dataclass(frozen=True)
class RunRecord:
    """A run's files. `gaps` says in words what was missing or could not be read.

    Times in `reports` are Unix seconds, as members sent them; all other times are seconds since training began.
    `curves` has what programs that are not ours gave of themselves: name → program → (times, values). A name that no
    program gave more than once is a figure, and no curve.
    `estimates` says what was estimated of links (`links`: name → estimate) each time that it was written down.
    """

    path: Path
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    states: Mapping[str, tuple[LinkRecord, ...]]
    samples: tuple[TrafficRecord, ...]
    events: tuple[Mapping[str, Any], ...]
    reports: tuple[Report, ...]
    decisions: tuple[Mapping[str, Any], ...]
    estimates: tuple[Mapping[str, Any], ...]
    plans: Mapping[int, Plan]
    zero_s: float
    gaps: tuple[str, ...]
    curves: Mapping[str, Mapping[str, tuple[list[float], list[float]]]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """The run in a directory. NotARun when there is none."""
        return _Reader(path).read()

    @property
    def id(self) -> str:
        return str(self.manifest.get("id") or self.path.resolve().name)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: one that did not leaves reasons at most, and no figures."""
        training = self.summary.get("training")
        return isinstance(training, Mapping) and training.get("wall_seconds") is not None

    def section(self, name: str) -> Mapping[str, Any]:
        """A part of the summary; empty when the run ended before it."""
        part = self.summary.get(name) if self.finished else None
        return part if isinstance(part, Mapping) else {}

    @property
    def spec(self) -> Mapping[str, Any]:
        """The experiment's values as run, overrides included; empty where the manifest lacks them."""
        return self.manifest.get("spec") or {}

    @property
    def estimated(self) -> bool:
        """Whether the controller went by what it estimated of links: not where it was told what they carry."""
        knowledge = (self.spec.get("controller") or {}).get("knowledge", "measured")
        return knowledge == "measured" and any(look["links"] for look in self.estimates)

    @property
    def planned(self) -> bool:
        """Whether members went by plans; those that gossip go by none."""
        return bool(self.plans or self.decisions)

    @property
    def policy(self) -> str:
        """The policy that planned, with its options: `netstorm`, or `netstorm:roots=1`."""
        sync = self.section("sync") or self.spec.get("sync") or {}
        options = (self.spec.get("sync") or {}).get("options") or {}
        return ":".join(
            [str(sync.get("policy") or "unknown policy"), *(f"{name}={value}" for name, value in options.items())]
        )

    def view(self, name: str) -> View | None:
        """A view by its name in a decision, read once; None where there is none."""
        if name not in self._views:
            try:
                self._views[name] = View.from_json(json.loads((self.path / name).read_text(encoding="utf-8")))
            except (OSError, ValueError):  # ViewError is a ValueError
                self._views[name] = None
        return self._views[name]

    @cached_property
    def _views(self) -> dict[str, View | None]:
        return {}

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Every member, in the first plan's order, and those that were added since."""
        if self.plans:
            return tuple({member: None for epoch in sorted(self.plans) for member in self.plans[epoch].members})
        return tuple(sorted({report.member for report in self.reports}))

    @cached_property
    def rounds(self) -> tuple[RoundFigures, ...]:
        """The rounds that all members reported that were there. Their times are Unix seconds; see `since`."""
        added = {its["worker"] for its in self.manifest.get("added_workers") or []}
        members = fewest(len(set(self.members) - added), self.manifest.get("passages") or [])
        return tuple(rounds_of([asdict(report) for report in self.reports], members))

    def since(self, unix_s: float) -> float:
        """Seconds since training began."""
        return unix_s - self.zero_s

    @cached_property
    def end_s(self) -> float:
        """Seconds from the start of training to the last thing recorded of it."""
        times = [self.since(round_.finished_s) for round_ in self.rounds]
        if ended := self.manifest.get("ended_s"):
            times.append(self.since(float(ended)))
        elif self.samples:
            times.append(self.samples[-1].at_s)
        return max([0.0, *times])

    def metric(self, name: str) -> tuple[list[float], list[float]]:
        """(seconds since training began, mean over members) of a metric, for each round in which it was given."""
        values = self.means.get(name, {})
        found = [(self.since(r.finished_s), values[r.number]) for r in self.rounds if r.number in values]
        return [at for at, _ in found], [value for _, value in found]

    @cached_property
    def means(self) -> Mapping[str, Mapping[int, float]]:
        """The mean over members of each metric, by its name and the round, where one gave a number."""
        values: dict[str, dict[int, list[float]]] = {}
        for report in self.reports:
            for name, value in report.metrics.items():
                if value is not None and math.isfinite(value):
                    values.setdefault(name, {}).setdefault(report.round, []).append(value)
        return {
            name: {number: sum(each) / len(each) for number, each in rounds.items()} for name, rounds in values.items()
        }

    @cached_property
    def epochs(self) -> Mapping[int, tuple[RoundFigures, ...]]:
        """The rounds of each plan epoch that came into force."""
        found: dict[int, list[RoundFigures]] = {}
        for round_ in self.rounds:
            found.setdefault(round_.epoch, []).append(round_)
        return {epoch: tuple(rounds) for epoch, rounds in found.items()}

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Swaps and events in the order of time; from the raw records where the run left no summary."""
        return tuple(sorted([*self._swap_marks(), *self._event_marks()], key=lambda mark: mark.at_s))

    def _swap_marks(self) -> Iterator[Mark]:
        if self.finished:
            for swap in self.summary.get("swaps", ()):
                if swap.get("active_s") is None:
                    continue
                if swap["kind"] == "plan":
                    yield Mark(swap["active_s"], "plan", f"plan {swap['epoch']}")
                else:
                    yield Mark(swap["active_s"], "network", "network swap")
            return
        for epoch, rounds in list(self.epochs.items())[1:]:
            yield Mark(self.since(rounds[0].entered_s), "plan", f"plan {epoch}")
        for event in self.events:
            if event["kind"] == "swap":
                yield Mark(event["at_s"], "network", "network swap")

    @cached_property
    def steps(self) -> tuple[RateStep, ...]:
        """The large changes of rates by traces, on links in use."""
        tracks = {
            link: ([state.at_s for state in states], [state.rate_bps if state.passes else None for state in states])
            for link, states in self.states.items()
        }
        samples = ((sample.at_s, sample.bytes) for sample in self.samples)
        return tuple(recorded_steps(tracks, samples, self.events))

    @cached_property
    def happened(self) -> tuple[Mapping[str, Any], ...]:
        """The events and the steps of rates, in the order of time; from the raw records where the run left no
        summary."""
        found = [*(self.summary["events"] if self.finished else self.events), *(one.to_event() for one in self.steps)]
        return tuple(sorted(found, key=lambda event: float(event["at_s"])))

    def _event_marks(self) -> Iterator[Mark]:
        for event in self.happened:
            if event["kind"] != "swap":  # marked as what it is: a network swap
                yield Mark(max(event["at_s"], 0.0), "event", f"{event['target']} {event['kind']}", event["kind"])


def _estimates_of(decisions: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """What was estimated of links when plans were considered: records of earlier versions have nothing else."""
    return tuple({"at_s": line["at_s"], "links": line.get("estimates") or {}} for line in decisions)


class _Reader:
    """Reads the files of one directory and notes what is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gaps: list[str] = []

    def read(self) -> RunRecord:
        manifest = self._manifest()
        reports = tuple(self._reports(optional="command" in ((manifest.get("spec") or {}).get("train") or {})))
        zero = self._zero(manifest, reports)
        decisions = tuple(self._since(zero, "decisions.jsonl", "at_s"))
        return RunRecord(
            path=self._path,
            manifest=manifest,
            summary=self._summary(),
            states=self._states(zero),
            samples=tuple(self._samples(zero)),
            events=tuple(self._since(zero, "events.jsonl", "at_s", "kind", "target")),
            reports=reports,
            decisions=decisions,
            estimates=tuple(self._since(zero, "estimates.jsonl", "at_s", "links")) or _estimates_of(decisions),
            plans=self._plans(considered=bool(decisions)),
            curves=self._curves(zero),
            zero_s=zero,
            gaps=(*self._gaps, *self._unwritten()),
        )

    def _manifest(self) -> Mapping[str, Any]:
        file = self._path / "manifest.json"
        remedy = "give the directory of a run, such as runs/latest"
        if not self._path.is_dir():
            raise NotARun(f"{self._path}: there is no such directory; {remedy}", rule="missing", file=self._path)
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotARun(
                f"{self._path}: not a run, it has no manifest.json; {remedy}", rule="no-manifest", file=self._path
            ) from None
        except ValueError as error:
            raise NotARun(f"{file}: not JSON ({error}); {remedy}", rule="json", file=file) from error
        if not isinstance(manifest, dict):
            raise NotARun(f"{file}: not a manifest, which is a JSON object; {remedy}", rule="json", file=file)
        if "launch" in manifest:
            raise NotARun(
                f"{self._path}: of `testbed launch`, which has no page; {remedy} of an experiment",
                rule="launch",
                file=self._path,
            )
        return manifest

    def _summary(self) -> Mapping[str, Any]:
        try:
            summary = json.loads((self._path / "summary.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            self._gaps.append("summary.json is missing or cut short")
            return {}
        return summary if isinstance(summary, dict) else {}

    def _zero(self, manifest: Mapping[str, Any], reports: tuple[Report, ...]) -> float:
        """When training began, or the nearest to it that is known (Unix seconds)."""
        if manifest.get("training_started_s"):
            return float(manifest["training_started_s"])
        self._gaps.append("the manifest does not say when training began: time counts from the first round")
        started = [report.started_s for report in reports]
        return min(started, default=float(manifest.get("started_s") or 0.0))

    def _lines(self, name: str, *needed: str, optional: bool = False) -> Iterator[dict[str, Any]]:
        """The records of a file that have the fields needed; the others are counted as gaps."""
        file = self._path / name
        if not file.exists():
            if not optional:
                self._gaps.append(f"{name} is missing")
            return
        torn = lacking = 0
        for record in read_lines(file):
            if record is None:
                torn += 1
            elif any(record.get(key) is None for key in needed):
                lacking += 1
            else:
                yield record
        if torn:  # the last one, or one that another followed after all
            self._gaps.append(f"{name}: {text.count(torn, 'line')} cut short, left out")
        if lacking:
            self._gaps.append(f"{name}: {text.count(lacking, 'line')} without needed fields, left out")

    def _since(self, zero: float, name: str, *needed: str) -> Iterator[dict[str, Any]]:
        """Lines that need not be there, with their times since training began."""
        return ({**line, "at_s": line["at_s"] - zero} for line in self._lines(name, *needed, optional=True))

    def _curves(self, zero: float) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
        curves: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        for line in self._since(zero, "curves.jsonl", "at_s", "program", "values"):
            for name, value in line["values"].items():
                at, values = curves.setdefault(name, {}).setdefault(line["program"], ([], []))
                if value is not None:
                    at.append(line["at_s"])
                    values.append(value)
        return {name: each for name, each in curves.items() if any(len(at) > 1 for at, _ in each.values())}

    def _reports(self, optional: bool) -> Iterator[Report]:
        """What members reported; `optional` where they are not ours, and report nothing."""
        for line in self._lines("rounds.jsonl", "member", "round", optional=optional):
            known = {key: value for key, value in line.items() if key in _REPORT_FIELDS}
            try:
                report: Report = convert_to(Report, known)
            except ProtocolError as error:
                self._gaps.append(f"rounds.jsonl: {error}")
            else:
                yield report

    def _states(self, zero: float) -> dict[str, tuple[LinkRecord, ...]]:
        states: dict[str, list[LinkRecord]] = {}
        for line in self._lines("links.jsonl", "at_s", "link"):
            track, at = states.setdefault(line["link"], []), line["at_s"] - zero
            if line.get("removed"):
                track.append(LinkRecord(at, 0.0, track[-1].delay_s if track else 0.0, there=False))
            elif line.get("rate_bps") is not None:
                up = bool(line.get("up", True))
                delay, loss = line.get("delay_s") or 0.0, line.get("loss") or 0.0
                track.append(LinkRecord(at, line["rate_bps"], delay, loss, up))
        return {link: tuple(track) for link, track in states.items() if track}

    def _samples(self, zero: float) -> Iterator[TrafficRecord]:
        for line in self._lines("traffic.jsonl", "at_s", "bytes"):
            busy_s = line.get("busy_s") or {}
            # Runs of before 26 November 2026 told no steady stretches: of those, all that arrived is the nearest.
            steady_bytes, steady_s = line.get("steady_bytes") or line["bytes"], line.get("steady_s") or busy_s
            yield TrafficRecord(line["at_s"] - zero, line["bytes"], busy_s, line.get("cpu"), steady_bytes, steady_s)

    def _unwritten(self) -> Iterator[str]:
        """Files that were being written as the run was cut off; what they were to hold lies beside, not whole."""
        for file in sorted(self._path.rglob(f"*{UNFINISHED}")):
            name, _, _ = file.relative_to(self._path).as_posix().rsplit(".", 2)
            yield f"{name} was being written"

    def _plans(self, considered: bool) -> dict[int, Plan]:
        """The plans by their epochs. Where none was ever `considered`, members gossiped, and nothing is missing."""
        plans = {}
        for file in sorted((self._path / "plans").glob("*.json")):
            try:
                plan = Plan.from_json(json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, AttributeError) as error:  # PlanError is a ValueError
                self._gaps.append(f"plans/{file.name}: {error}")
                continue
            plans[plan.epoch] = plan
        if considered and not plans:
            self._gaps.append("plans/ holds no plan")
        return plans
