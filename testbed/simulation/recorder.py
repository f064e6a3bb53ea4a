"""The records of a simulation in the run's directory, as a live run writes them, and its progress on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from math import floor, inf
from typing import Any

from testbed.emulation.links.links import link_record
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES, LinkState
from testbed.planning import Pair
from testbed.run.conclusion.verdict import SIMULATED
from testbed.run.directory import RunDirectory
from testbed.run.manifest import Manifest
from testbed.run.terminal.display import Display, Snapshot
from testbed.simulation.environment import Environment, congestion_control
from testbed.simulation.event_queue import SimulatedClocks
from testbed.simulation.network import NetworkState
from testbed.simulation.round_model import SimulatedRound, Transfer
from testbed.spec.experiment import Experiment
from testbed.telemetry.rate_steps import RateSteps

#: The interval between samples of the links' traffic, as a run's sampler takes them.
SAMPLE_S = 1.0

#: The shortest interval between frames on the terminal: rounds may take a millisecond each.
SHOW_S = 0.25

#: Link states are recorded for at most this many members.
MOST_RECORDED = 128


class LinkTraffic:
    """Counts the bytes of frames on each link. `record` is called with a sample for each second that is over."""

    def __init__(self, clocks: SimulatedClocks, record: Callable[[Mapping[str, Any]], None]) -> None:
        self._clocks = clocks
        self._record = record
        self._second = 0
        self._coming: dict[int, dict[str, float]] = {}
        self._bytes: dict[str, float] = {}

    def begin(self, links: Iterable[str]) -> None:
        """Record that nothing was carried yet, as a sampler does when training begins."""
        self._bytes = dict.fromkeys(links, 0.0)
        self._record_sample(0.0)

    def add_round(self, done: SimulatedRound) -> None:
        """Count a round's transfers, each when its last byte was sent, and detours at the round's end."""
        for pair, sent in done.transfers.items():
            self.add(pair, sent, done.network)
        over_s = max(done.finished_s.values())
        for pair, size in done.hops.items():
            self.add(pair, (Transfer(over_s, over_s, over_s, over_s, size),), done.network)

    def add(self, pair: Pair, sent: Iterable[Transfer], network: NetworkState) -> None:
        """Add a pair's transfers to the counts of each link on the pair's route, by second."""
        links = network.links_between(*pair)
        for chunk in sent if links else ():
            second = self._coming.setdefault(floor(chunk.ended_s / SAMPLE_S), {})
            for link in links or ():
                second[link] = second.get(link, 0.0) + chunk.bytes * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES

    def sample(self, until_s: float = inf) -> None:
        """Record the samples of all seconds that are over by `until_s`; by default of all with transfers."""
        last = max(self._coming, default=self._second) + 1 if until_s == inf else floor(until_s / SAMPLE_S)
        for second in range(self._second, last):
            for link, size in self._coming.pop(second, {}).items():
                self._bytes[link] = self._bytes.get(link, 0.0) + size
            self._record_sample((second + 1) * SAMPLE_S)
        self._second = max(self._second, last)

    def _record_sample(self, at_s: float) -> None:
        self._record(
            {
                "at_s": self._clocks.zero_s + at_s,
                "clock_s": at_s,
                "bytes": {link: round(size) for link, size in self._bytes.items()},
                "unshaped_bytes": {},
                "busy_s": {},
                "cpu": None,
            }
        )


class RunRecorder:
    """Writes the records of a run, and shows its progress."""

    def __init__(self, directory: RunDirectory, display: Display, environment: Environment) -> None:
        self.traffic = LinkTraffic(environment.queue.clocks, self._record_traffic)
        self._directory = directory
        self._display = display
        self._environment = environment
        self._events: list[str] = []
        self._steps = RateSteps()
        self._states: Mapping[str, LinkState] = {}
        self._metrics: dict[str, float | None] = {}
        self._recorded_s = -1.0
        self._shown_s = 0.0

    def begin(self, experiment: Experiment, model: str, gradients: bool) -> None:
        """Write the manifest, with the name of the model that simulates the training."""
        how = {"model": model, "congestion": congestion_control(experiment), "gradients": gradients}
        self._manifest = Manifest(self._directory, experiment, backend=SIMULATED, simulated=how)
        self._manifest.add(training_started_s=self._environment.queue.clocks.zero_s, membership_events=[])
        self.traffic.begin(self._environment.network.at(0.0).topology.links)

    def end(self, at_s: float) -> None:
        """Record that training ended `at_s` seconds after it began."""
        self._manifest.add(ended_s=self._environment.queue.clocks.zero_s + at_s)

    def record_event(self, kind: str, target: str, changed: Mapping[str, float | None] | None = None) -> None:
        """Record an event of the network; `changed` are all requested values of a link that was changed."""
        self._events.append(f"{kind} {target}")
        record: dict[str, Any] = {"at_s": self._environment.queue.clocks.unix(), "kind": kind, "target": target}
        self._directory.append("events.jsonl", record | ({} if changed is None else {"changed": dict(changed)}))
        if kind in ("change", "swap"):
            self._steps.forget([target] if kind == "change" else None)

    def _record_traffic(self, sample: Mapping[str, Any]) -> None:
        """Record a sample of the links' traffic, and show steps of their rates."""
        self._directory.append("traffic.jsonl", sample)
        rates = {name: state.rate_bps if state.up else None for name, state in self._states.items()}
        self._events += map(str, self._steps.look(sample["at_s"], rates, sample["bytes"]))

    def update(self, number: int, until_s: float) -> None:
        """Record the links' states until `until_s`, and show that round `number` is over."""
        self._record_links(until_s)
        self._environment.network.forget(self._environment.queue.clocks.now_s)
        if time.monotonic() - self._shown_s < SHOW_S:
            return
        self._shown_s = time.monotonic()
        latest = self._environment.controller.latest
        left = latest.rounds_left
        self._metrics |= latest.metrics
        self._display.show(
            Snapshot(
                round=number,
                rounds=self._environment.controller.spec.rounds if left is None else number + left,
                loss=self._metrics.get("loss"),
                accuracy=self._metrics.get("accuracy"),
                seconds_per_round=latest.seconds,
                plan=latest.plan,
                states=self._states,
                throughput={},
                events=tuple(self._events),
            )
        )

    def _record_links(self, until_s: float) -> None:
        if len(self._environment.controller.spec.members) > MOST_RECORDED:
            return
        for state in self._environment.network.between(max(self._recorded_s, 0.0), until_s):
            if state.at_s <= self._recorded_s:
                continue
            at_s = self._environment.queue.clocks.zero_s + state.at_s
            for name, link in state.states.items():
                if self._states.get(name) != link:
                    self._directory.append("links.jsonl", link_record(at_s, name, link))
            for name in self._states.keys() - state.states.keys():
                self._directory.append("links.jsonl", {"at_s": at_s, "link": name, "removed": True})
            self._states, self._recorded_s = state.states, state.at_s
