"""What happens in a simulation, as it goes on: written down as a run's, and told to whoever watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.controller.outcome import status
from testbed.emulation.history import link_record
from testbed.link import LinkState
from testbed.plan import Plan
from testbed.run.directory import RunDirectory
from testbed.run.display import Display, Snapshot
from testbed.simulation.stage import Stage


class SimulatedStory:
    """Writes into a run's `directory`, and shows."""

    def __init__(self, directory: RunDirectory, display: Display, stage: Stage) -> None:
        self._directory = directory
        self._display = display
        self._stage = stage
        self._happened: list[str] = []
        self._states: Mapping[str, LinkState] = {}
        self._seen_s = -1.0

    def happened(self, kind: str, target: str) -> None:
        """Something has happened to the network, now."""
        self._happened.append(f"{kind} {target}")
        record = {"at_s": self._stage.agenda.clocks.unix(), "kind": kind, "target": target}
        self._directory.append("events.jsonl", record)

    def sampled(self, sample: Mapping[str, Any]) -> None:
        """What links carried is sampled once more."""
        self._directory.append("traffic.jsonl", sample)

    def watch(self, number: int, until_s: float) -> None:
        """A round is over; links are known up to a moment."""
        self._note_links(until_s)
        now = status(self._stage.controller)
        metrics = now["metrics"]
        self._display.show(
            Snapshot(
                round=number,
                rounds=now["rounds"],
                loss=metrics.get("loss"),
                accuracy=metrics.get("accuracy"),
                seconds_per_round=now["round_seconds"],
                plan=Plan.from_json(now["plan"]),
                states=self._states,
                throughput={},
                events=tuple(self._happened),
            )
        )

    def _note_links(self, until_s: float) -> None:
        """Write down what links have become since the last time."""
        for state in self._stage.underlay.course(max(self._seen_s, 0.0)):
            if state.at_s > until_s:
                break
            if state.at_s <= self._seen_s:
                continue
            at_s = self._stage.agenda.clocks.zero_s + state.at_s
            for name, link in state.states.items():
                if self._states.get(name) != link:
                    self._directory.append("links.jsonl", link_record(at_s, name, link))
            for name in self._states.keys() - state.states.keys():
                self._directory.append("links.jsonl", {"at_s": at_s, "link": name, "removed": True})
            self._states, self._seen_s = state.states, state.at_s
