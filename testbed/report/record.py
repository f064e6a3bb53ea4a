"""The record of a run: what its files hold, and what follows from them: rounds, metrics, swaps, events."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from msgspec.structs import asdict

from testbed.planning import View
from testbed.protocol import Report
from testbed.report.run_files import RunFiles, is_of_command
from testbed.run.conclusion.summary import RoundFigures, fewest, rounds_of
from testbed.telemetry.rate_steps import RateStep, recorded_steps
from testbed.telemetry.store import read_json

#: Workers are named after their site: `paris-w0`.
_WORKER_NAME = re.compile(r"(?P<site>.+)-w\d+")


def site_of(member: str) -> str:
    """Return the site of a worker by its name; the name of any other member is its site."""
    match = _WORKER_NAME.fullmatch(member)
    return match["site"] if match else member


@dataclass(frozen=True, slots=True)
class Mark:
    """A swap or an event of the run, `at_s` seconds after training began."""

    at_s: float
    kind: Literal["plan", "network", "event"]
    label: str
    #: The label where there is no room for the whole one.
    short: str = ""


@dataclass(frozen=True)
class RunRecord(RunFiles):
    """A run by its files, with its rounds, metrics, swaps and events."""

    @property
    def id(self) -> str:
        """The run's id in its manifest, or the directory's name where the manifest has none."""
        return str(self.manifest.get("id") or self.path.resolve().name)

    @property
    def finished(self) -> bool:
        """True if training came to its end; only then the summary has figures."""
        training = self.summary.get("training")
        return isinstance(training, Mapping) and training.get("wall_seconds") is not None

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the summary; an empty one of a run that did not finish."""
        part = self.summary.get(name) if self.finished else None
        return part if isinstance(part, Mapping) else {}

    @property
    def spec(self) -> Mapping[str, Any]:
        """The experiment's values with all overrides; empty where the manifest lacks them."""
        return self.manifest.get("spec") or {}

    @property
    def of_command(self) -> bool:
        """True if a command trained; its workers report no rounds, unless they follow plans."""
        return is_of_command(self.manifest)

    @property
    def estimated(self) -> bool:
        """True if the controller estimated the rates of links; False where it was given the true rates."""
        knowledge = (self.spec.get("controller") or {}).get("knowledge", "measured")
        return knowledge == "measured" and any(look["links"] for look in self.estimates)

    @property
    def planned(self) -> bool:
        """True if members followed plans; members that gossip follow none."""
        return bool(self.plans or self.decisions)

    @property
    def policy(self) -> str:
        """The policy with its options: `netstorm`, or `netstorm:roots=1`; the scheme where no policy plans."""
        sync = self.section("sync") or self.spec.get("sync") or {}
        options = (self.spec.get("sync") or {}).get("options") or {}
        name = str(sync.get("policy") or sync.get("strategy") or "no policy")
        return ":".join([name, *(f"{option}={value}" for option, value in options.items())])

    def view(self, name: str) -> View | None:
        """Return the view that a decision names, or None where its file is missing or damaged."""
        if name not in self._views:
            try:
                self._views[name] = View.from_json(read_json(self.path / name))
            except (OSError, ValueError):  # ViewError is a ValueError
                self._views[name] = None
        return self._views[name]

    @cached_property
    def _views(self) -> dict[str, View | None]:
        return {}

    @cached_property
    def members(self) -> tuple[str, ...]:
        """All members: those of the first plan, in its order, then those that later plans added."""
        if self.plans:
            return tuple({member: None for epoch in sorted(self.plans) for member in self.plans[epoch].members})
        return tuple(sorted({report.member for report in self.reports}))

    @cached_property
    def sites(self) -> Mapping[str, Sequence[str]]:
        """The members of each site, by the site's name."""
        found: dict[str, list[str]] = {}
        for member in self.members:
            found.setdefault(site_of(member), []).append(member)
        return found

    @cached_property
    def rounds(self) -> tuple[RoundFigures, ...]:
        """The rounds that all present members reported. Their times are Unix seconds; see `since`."""
        added = {its["worker"] for its in self.manifest.get("added_workers") or []}
        changes = self.manifest.get("membership_events")
        if changes is None:  # the run was cut off
            changes = [event for event in self.events if event["kind"] in ("left", "came")]
            added = {event["target"] for event in self.events if event["kind"] == "add"}
        members = fewest(len(set(self.members) - added), changes)
        return tuple(rounds_of([asdict(report) for report in self.reports], members))

    def since(self, unix_s: float) -> float:
        """Return a Unix time as seconds since training began."""
        return unix_s - self.zero_s

    def synchronizing_s(self, report: Report) -> float:
        """Return the seconds of a report's round; of an iteration, those beside its steps, where members gossip."""
        seconds = report.finished_s - report.started_s
        return seconds if self.planned else max(seconds - report.compute_s - report.paced_s, 0.0)

    @cached_property
    def end_s(self) -> float:
        """Seconds from the start of training to its end, or to the last record of an unfinished run."""
        times = [self.since(round_.finished_s) for round_ in self.rounds]
        if ended := self.manifest.get("ended_s"):
            times.append(self.since(float(ended)))
        elif self.samples:
            times.append(self.samples[-1].at_s)
        return max([0.0, *times])

    def metric(self, name: str) -> tuple[list[float], list[float]]:
        """Return (times, means over members) of a metric, for the rounds in which members reported it."""
        values = self.means.get(name, {})
        found = [(self.since(r.finished_s), values[r.number]) for r in self.rounds if r.number in values]
        return [at for at, _ in found], [value for _, value in found]

    @cached_property
    def means(self) -> Mapping[str, Mapping[int, float]]:
        """Metric -> round -> mean over the members that reported a finite value."""
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
        """Epoch -> the rounds under its plan, for each plan that came into force."""
        found: dict[int, list[RoundFigures]] = {}
        for round_ in self.rounds:
            found.setdefault(round_.epoch, []).append(round_)
        return {epoch: tuple(rounds) for epoch, rounds in found.items()}

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Swaps and events in order of time; from the raw records where the run left no summary."""
        return tuple(sorted([*self._swap_marks(), *self._event_marks()], key=lambda mark: mark.at_s))

    def _swap_marks(self) -> Iterator[Mark]:
        if self.finished:
            for swap in self.summary.get("swaps", ()):
                if swap.get("active_s") is None:
                    continue
                if swap["kind"] == "plan":
                    yield Mark(swap["active_s"], "plan", f"plan {swap.get('epoch')}")
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
        """The large changes that traces made in the rates of links in use."""
        tracks = {
            link: ([state.at_s for state in states], [state.rate_bps if state.passes else None for state in states])
            for link, states in self.states.items()
        }
        samples = ((sample.at_s, sample.bytes) for sample in self.samples)
        return tuple(recorded_steps(tracks, samples, self.events))

    @cached_property
    def happened(self) -> tuple[Mapping[str, Any], ...]:
        """Events and steps of rates in order of time; from the raw records where the run left no summary."""
        events = self.summary.get("events", ()) if self.finished else self.events
        found = [*events, *(one.to_event() for one in self.steps)]
        return tuple(sorted(found, key=lambda event: float(event["at_s"])))

    def _event_marks(self) -> Iterator[Mark]:
        for event in self.happened:
            if event["kind"] != "swap":  # has a mark of its own kind
                yield Mark(max(event["at_s"], 0.0), "event", f"{event['target']} {event['kind']}", event["kind"])
