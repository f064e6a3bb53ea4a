"""A recorded run replayed: its members' messages fed to today's controller, on simulated time.

    recorded rounds --messages at their moments--> controller --the same plan as recorded?--> next recorded round
                                                                `--another plan--> simulated rounds, to the end

A record cannot show what a plan would have measured that was not in force. From the first round on that today's
controller has under another plan than the record, rounds are therefore the simulator's, over the rates that the run's
traces and events gave its links. Members go on to compute as long as they did in the record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.model.membership import GroupState
from testbed.emulation.network.routing import Routes
from testbed.plan import Plan
from testbed.protocol import Arrived, Probe, Report
from testbed.report.record import RunRecord
from testbed.run.jobs import Jobs
from testbed.schema import convert_to
from testbed.simulation.environment import Environment, EventSchedule, SimulatedController
from testbed.simulation.event_queue import EventQueue, SimulatedClocks
from testbed.simulation.measurements import Measurements
from testbed.simulation.members import NO_STEPS, DueReport, FinishedRound
from testbed.simulation.network import SimulatedNetwork
from testbed.simulation.round_model import coded_payload
from testbed.simulation.round_simulation import hold_s, model_of
from testbed.spec.experiment import Experiment
from testbed.telemetry.store import read_records

#: A swap that record and replay share may take force up to this many rounds later in the record: a controller that
#: shares its processors decides up to a round later than one on simulated time.
LATER = 3


#: Fields of an experiment that are seconds in a manifest, and have a unit in a file.
DURATIONS = ("period", "step_time", "round_timeout")


class CannotReplay(ValueError):
    """The run recorded something that a replay cannot repeat; the message names it."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a replay. Times are seconds since training began."""

    #: Today's decisions, in the form of a run's `decisions.jsonl`.
    decisions: tuple[Mapping[str, Any], ...]
    plans: Mapping[int, Plan]
    #: The end and the epoch of each round.
    rounds: tuple[tuple[float, int], ...]
    swaps: tuple[Mapping[str, Any], ...]
    #: When the first simulated round began; None if the record holds throughout.
    simulated_from_s: float | None
    #: The number of that round.
    simulated_round: int | None


def replay(record: RunRecord, out: Path, until_s: float = float("inf")) -> Replayed:
    """Replay a run up to a moment, or to its last recorded round.

    Args:
        record: The run.
        out: A folder for the replay's own records.
        until_s: Seconds after training began.

    Raises:
        CannotReplay: members came, left, gossiped or were told of a plan by hand.
    """
    experiment = experiment_of(record, out / "inputs")
    return _Replay(record, experiment, out).run(min(until_s, record.end_s))


def experiment_of(record: RunRecord, folder: Path) -> Experiment:
    """Return the experiment of a run, from the inputs in its manifest, which are written into `folder`.

    Its events happen at the recorded moments.
    """
    inputs = record.manifest.get("inputs") or {}
    if not inputs:
        raise CannotReplay(f"{record.path}: the manifest has no inputs")
    # Below the folder that holds them all, so that files which name each other find each other.
    paths = [Path(name).resolve() for name in inputs]
    above = os.path.commonpath([path.parent for path in paths])
    files = [folder / path.relative_to(above) for path in paths]
    for file, text in zip(files, inputs.values(), strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    file = files[0]
    experiment = Experiment.load(file)
    overrides = dict(_changed(experiment.spec.model_dump(mode="json"), record.spec))
    spec = (experiment := Experiment.load(file, overrides)).spec
    if spec.program or spec.elastic or spec.sync.scheme.exchange != "all-reduce" or spec.sync.scheme.conducted:
        raise CannotReplay(f"{record.path}: only rounds of all-reduce with the same members throughout are replayed")
    waiting, events = list(spec.events), []
    for line in record.events:
        event = next((its for its in waiting if getattr(its, line["kind"], None)), None)
        if event is None:
            raise CannotReplay(f"{record.path}: {line['kind']} {line['target']} is no event of the experiment")
        waiting.remove(event)
        events.append(event.model_copy(update={"at": line["at_s"], "round": None}))
    return replace(experiment, spec=spec.model_copy(update={"events": events}))


def _changed(written: Mapping[str, Any], ran: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields that differ from the run's file, as overrides that `--set` takes."""
    for name in (written.keys() & ran.keys()) - {"events"}:
        if isinstance(written[name], Mapping) and isinstance(ran[name], Mapping):
            yield from _changed(written[name], ran[name], f"{path}{name}.")
        elif written[name] != ran[name]:
            yield path + name, f"{ran[name]}s" if name in DURATIONS else json.dumps(ran[name])


class _Replay:
    def __init__(self, record: RunRecord, experiment: Experiment, out: Path) -> None:
        clocks = SimulatedClocks(record.zero_s)
        clocks.zero_s = record.zero_s  # links changed at these moments, whatever a second's fraction
        clocks.now_s = min([line["at_s"] for line in record.decisions] or [0.0])
        routes = Routes.over(experiment.topology)
        spec = Jobs(experiment).controller_spec(routes, clocks.unix())
        queue = EventQueue(clocks)
        self._record = record
        self._experiment = experiment
        self._out = out
        controller = SimulatedController(spec, out, queue)
        self._environment = Environment(SimulatedNetwork(experiment, routes), queue, controller)
        self._schedule = EventSchedule(experiment, self._environment, lambda *_: None)
        self._measurements: Measurements | None = None
        self._recorded: dict[int, tuple[float, Plan]] = {}  # when each round began, and its plan
        for report in record.reports:
            plan = record.plans[report.epoch]
            began_s, _ = self._recorded.get(report.round, (float("inf"), plan))
            self._recorded[report.round] = min(began_s, record.since(report.started_s)), plan
        self._ends: list[tuple[float, int]] = []

    def run(self, until_s: float) -> Replayed:
        environment = self._environment
        with closing(environment.controller):
            environment.controller.connect(partial(hold_s, environment), self._probe)
            environment.controller.begin()
            diverged = self._follow(until_s)
            if diverged is not None:
                self._simulate(diverged, until_s)
        decisions = [self._since(line, "at_s") for line in read_records(self._out / "decisions.jsonl")]
        plans = [Plan.from_json(json.loads(file.read_text())) for file in (self._out / "plans").glob("*.json")]
        return Replayed(
            decisions=tuple(decisions),
            plans={plan.epoch: plan for plan in plans},
            rounds=tuple(self._ends),
            swaps=tuple(
                self._since(swap, "requested_s", "held_s", "active_s") for swap in self._group.plans.swaps_to_json()
            ),
            simulated_from_s=None if diverged is None else self._recorded[diverged][0],
            simulated_round=diverged,
        )

    def _since(self, line: Mapping[str, Any], *moments: str) -> dict[str, Any]:
        """Return the line with its Unix times as seconds since training began."""
        return {**line, **{name: line[name] and self._record.since(line[name]) for name in moments}}

    def _probe(self, member: str, probe: Probe) -> None:
        """Send a probe over simulated links. Recorded probes have their outcome in the record."""
        if self._measurements is not None:
            self._measurements.probe(member, probe)

    # As recorded

    def _messages(self) -> list[tuple[float, Report | Arrived]]:
        """Return the members' messages, with the moments at which the controller received them, in order."""
        found: list[tuple[float, Report | Arrived]] = []
        for kind, name in ((Report, "rounds.jsonl"), (Arrived, "arrivals.jsonl")):
            fields = set(kind.__struct_fields__)
            for line in read_records(self._record.path / name):
                known = {key: value for key, value in line.items() if key in fields}
                found.append((self._record.since(line["at_s"]), convert_to(kind, known)))
        return sorted(found, key=lambda one: one[0])

    def _follow(self, until_s: float) -> int | None:
        """Feed the record's messages for as long as its plans are today's.

        Returns:
            The first round that has another plan today; None if there is no such round.
        """
        environment, number, epochs = self._environment, 0, dict[int, int]()
        coming = sorted(self._recorded)
        for at_s, message in self._messages():
            if at_s > until_s:
                break
            while number < len(coming) and self._recorded[coming[number]][0] <= at_s:
                environment.queue.run_until(self._recorded[coming[number]][0])
                plan = self._agreed(coming[number])
                if plan is None:
                    return coming[number]
                epochs[coming[number]] = plan.epoch
                number += 1
            environment.queue.run_until(at_s)
            environment.queue.clocks.now_s = at_s
            if isinstance(message, Report):
                message = with_fields(message, epoch=epochs[message.round])
            self._hear(message)
        return None

    def _agreed(self, number: int) -> Plan | None:
        """Return today's plan for a recorded round; None if the record has another."""
        shape = self._recorded[number][1].shape()
        group, newest = self._group, self._environment.controller.plan
        pending = group.plans.pending
        for plan in (newest, *([pending.plan] if pending else [])):
            if plan.shape() == shape:
                return plan
        soon = [self._recorded[n][1].shape() for n in range(number + 1, number + 1 + LATER) if n in self._recorded]
        return group.plans.plan if group.plans.plan.shape() == shape and newest.shape() in soon else None

    @property
    def _group(self) -> GroupState:
        coordinator = self._environment.controller.coordinator
        assert isinstance(coordinator, AllReduceCoordinator)  # others are refused
        return coordinator.group

    # Simulated

    def _simulate(self, first: int, until_s: float) -> None:
        """Simulate the rounds from `first` on."""
        environment, experiment = self._environment, self._experiment
        model = model_of(experiment, environment.network)
        elements = experiment.spec.own_train.model_bytes // 4
        compute_s = self._group.rounds.compute_s()
        names = environment.controller.spec.members
        self._measurements = measurements = Measurements(environment, names, True)
        began_s = {
            report.member: self._record.since(report.started_s)
            for report in self._record.reports
            if report.round == first
        }
        for number in range(first, environment.controller.spec.rounds + 1):
            plan = environment.controller.plan
            done = model.simulate(plan, number, began_s, coded_payload(plan, number, elements))
            measurements.add_round(done)
            for name, at_s in done.finished_s.items():
                environment.queue.schedule(at_s, partial(self._over, name, FinishedRound(number, plan, done)))
            began_s = {name: at_s + compute_s[name] for name, at_s in done.finished_s.items()}
            environment.queue.run_until(min(began_s.values()))
            if max(done.finished_s.values()) > until_s:
                break

    def _over(self, name: str, told: FinishedRound) -> None:
        assert self._measurements is not None
        before = self._group.rounds.count
        self._measurements.report(name, DueReport(0.0, (told,), NO_STEPS))
        self._note(before)

    def _hear(self, message: Report | Arrived) -> None:
        before = self._group.rounds.count
        self._environment.controller.receive(message)
        self._note(before)

    def _note(self, before: int) -> None:
        """Keep the ends of the rounds completed since there were `before` of them."""
        rounds = self._group.rounds
        for done in rounds.complete[len(rounds.complete) - (rounds.count - before) :]:
            self._ends.append((self._record.since(done.finished_s), done.epoch))
