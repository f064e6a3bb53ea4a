"""What happens in a simulation, as it goes on: written down as a run's, and told to whoever watches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from testbed.emulation.links.history import link_record
from testbed.link import LinkState
from testbed.run.conclusion.verdict import SIMULATED
from testbed.run.directory import RunDirectory
from testbed.run.manifest import Manifest
from testbed.run.terminal.display import Display, Snapshot
from testbed.simulation.stage import Stage, congestion_control
from testbed.spec.experiment import Experiment
from testbed.telemetry.rate_steps import RateSteps

#: Rounds may take a millisecond each, and who watches sees four frames a second.
SHOWN_EACH_S = 0.25
#: States of the links of so many members at most are written down, second by second.
MOST_NOTED = 128


class SimulatedStory:
    """Writes into a run's `directory`, and shows."""

    def __init__(self, directory: RunDirectory, display: Display, stage: Stage) -> None:
        self._directory = directory
        self._display = display
        self._stage = stage
        self._happened: list[str] = []
        self._steps = RateSteps()
        self._states: Mapping[str, LinkState] = {}
        self._metrics: dict[str, float | None] = {}
        self._seen_s = -1.0
        self._shown_s = 0.0

    def begins(self, experiment: Experiment, model: str, gradients: bool) -> None:
        """Write the manifest, with the name of the model that simulates the training."""
        how = {"model": model, "congestion": congestion_control(experiment), "gradients": gradients}
        began_s = self._stage.queue.clocks.zero_s
        self._manifest = Manifest(self._directory, experiment, backend=SIMULATED, simulated=how)
        self._manifest.add(training_started_s=began_s, passages=[])

    def ended(self, at_s: float) -> None:
        """It has ended, so long after it began."""
        self._manifest.add(ended_s=self._stage.queue.clocks.zero_s + at_s)

    def happened(self, kind: str, target: str, changed: Mapping[str, float | None] | None = None) -> None:
        """Record that something has happened to the network, as a run's story does."""
        self._happened.append(f"{kind} {target}")
        record: dict[str, Any] = {"at_s": self._stage.queue.clocks.unix(), "kind": kind, "target": target}
        self._directory.append("events.jsonl", record | ({} if changed is None else {"changed": dict(changed)}))
        if kind in ("change", "swap"):
            self._steps.forget([target] if kind == "change" else None)

    def sampled(self, sample: Mapping[str, Any]) -> None:
        """Record what links have carried, and tell of steps of their rates."""
        self._directory.append("traffic.jsonl", sample)
        rates = {name: state.rate_bps if state.up else None for name, state in self._states.items()}
        self._happened += map(str, self._steps.look(sample["at_s"], rates, sample["bytes"]))

    def watch(self, number: int, until_s: float) -> None:
        """A round is over; links are known up to a moment."""
        self._note_links(until_s)
        if time.monotonic() - self._shown_s < SHOWN_EACH_S:
            return
        self._shown_s = time.monotonic()
        newest = self._stage.controller.newest
        left = newest.rounds_left
        self._metrics |= newest.metrics
        self._display.show(
            Snapshot(
                round=number,
                rounds=self._stage.controller.spec.rounds if left is None else number + left,
                loss=self._metrics.get("loss"),
                accuracy=self._metrics.get("accuracy"),
                seconds_per_round=newest.seconds,
                plan=newest.plan,
                states=self._states,
                throughput={},
                events=tuple(self._happened),
            )
        )

    def _note_links(self, until_s: float) -> None:
        """Write down what links have become since the last time."""
        if len(self._stage.controller.spec.members) > MOST_NOTED:
            return
        for state in self._stage.network.since(max(self._seen_s, 0.0)):
            if state.at_s > until_s:
                break
            if state.at_s <= self._seen_s:
                continue
            at_s = self._stage.queue.clocks.zero_s + state.at_s
            for name, link in state.states.items():
                if self._states.get(name) != link:
                    self._directory.append("links.jsonl", link_record(at_s, name, link))
            for name in self._states.keys() - state.states.keys():
                self._directory.append("links.jsonl", {"at_s": at_s, "link": name, "removed": True})
            self._states, self._seen_s = state.states, state.at_s
