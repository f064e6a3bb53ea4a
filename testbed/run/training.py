"""The time from the first round to the last: replay, samples, events, and what a person sees of them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.markup import escape

from testbed.controller.client import AdminError
from testbed.emulation.network import Network
from testbed.emulation.probe import LinkFidelity, measure_links
from testbed.emulation.replay import Replay
from testbed.plan import Plan
from testbed.run.directory import RunDirectory
from testbed.run.display import Display, Snapshot
from testbed.run.errors import RunFailed
from testbed.run.manifest import Manifest
from testbed.run.sampler import Sampler
from testbed.run.script import Script
from testbed.run.service import ControllerProcess
from testbed.run.workers import Workers
from testbed.spec.experiment import Experiment

#: How often the run looks at its parts while training goes on; events are on time to within it.
POLL_S = 0.1
#: How often it asks the controller; a round takes longer.
STATUS_S = 0.3


@dataclass
class Outcome:
    """What a run leaves for its summary. Each link that the run ever had is in `fidelity`."""

    fidelity: dict[str, LinkFidelity]
    backend: str
    training_started_s: float
    training_ended_s: float
    lateness: dict[str, list[float]]
    rate_errors: dict[str, float]
    status: dict[str, Any]
    network_swaps: list[dict[str, Any]]
    missed_events: list[str]


class Training:
    """One training, watched. `fidelity` is what was measured of the links before it began."""

    def __init__(
        self,
        experiment: Experiment,
        network: Network,
        controller: ControllerProcess,
        directory: RunDirectory,
        manifest: Manifest,
        display: Display,
        fidelity: dict[str, LinkFidelity],
        workers: Workers,
    ) -> None:
        self._workers = workers
        self._passages_told = 0
        self._experiment = experiment
        self._network = network
        self._controller = controller
        self._directory = directory
        self._manifest = manifest
        self._display = display
        self._fidelity = fidelity
        self._replay = Replay(network.links_in_force)
        self._sampler = Sampler(network, self._sampled)
        self._script = Script(
            experiment,
            network,
            self._replay,
            controller.admin,
            workers.kill,
            self._happened,
            self._network_changes,
        )
        self._samples: list[dict[str, Any]] = []
        self._told: list[str] = []
        self._status: dict[str, Any] = {}
        self._swaps_told = 0
        self._rate_errors: dict[str, float] = {}

    def go_on(self) -> Outcome:
        """Until the controller says it is over; what there is to know then. RunFailed when it broke off."""
        started = time.time()
        self._manifest.add(training_started_s=started)
        with ExitStack() as stack, self._display.live(self._experiment.spec.train.rounds):
            stack.callback(self._replay.stop)
            stack.callback(self._sampler.stop)
            self._replay.start(self._network.topology.links.values())
            self._sampler.start()
            asked = 0.0
            while self._status.get("state", "running") == "running":
                time.sleep(POLL_S)
                self._script.play(self._replay.elapsed_s, self._status.get("round") or 0)
                for name in self._workers.look():
                    self._happened("restart", name)
                if time.monotonic() - asked >= STATUS_S:
                    asked = time.monotonic()
                    self._look()
        ended = time.time()
        self._manifest.add(
            ended_s=ended,
            offload=self._network.offload,
            transport=self._network.transport.record(),
            passages=self._status.get("passages", []),
        )
        if self._status["state"] == "failed":
            raise RunFailed(f"training stopped: {self._status['failure']}")
        self._keep_rate_errors()
        return Outcome(
            fidelity=self._fidelity,
            backend=self._network.shaper.name,
            training_started_s=started,
            training_ended_s=ended,
            lateness=self._network.links_in_force.lateness(),
            rate_errors=self._rate_errors,
            status=self._status,
            network_swaps=self._script.swaps,
            missed_events=self._script.waiting,
        )

    def _network_changes(self, added: set[str]) -> None:
        """A swap has built its new links, and has not moved any route or removed anything yet: the moment to measure
        the new ones idle, and to keep what is known of the others."""
        self._keep_rate_errors()
        if added:
            self._fidelity |= measure_links(self._network, lambda _: None, added)

    def _keep_rate_errors(self) -> None:
        counters = self._network.shaper.counters()
        self._rate_errors |= {name: error for name, c in counters.items() if (error := c.rate_error) is not None}

    def _look(self) -> None:
        self._controller.check()
        try:
            self._status = self._controller.admin.status()
        except AdminError:
            self._controller.check()
            return  # busy for a moment; asked again soon
        if broken := self._network.shaper.failure() or self._replay.failure or self._sampler.failure:
            raise RunFailed(f"the emulation broke: {broken}")
        for swap in self._status["swaps"][self._swaps_told :]:
            if swap["active_s"] is None:
                break
            self._swaps_told += 1
            why = escape(swap["reason"])
            self._told.append(f"plan {swap['epoch']} in force from round {swap['active_round']}: {why}")
        for passage in self._status["passages"][self._passages_told :]:
            self._passages_told += 1
            self._happened(passage["kind"], passage["member"], passage["at_s"])
        self._display.show(self._snapshot())

    def _snapshot(self) -> Snapshot:
        metrics = self._status["metrics"]
        return Snapshot(
            round=self._status["round"] or 0,
            rounds=self._status["rounds"],
            loss=metrics.get("loss"),
            accuracy=metrics.get("accuracy"),
            seconds_per_round=self._status["round_seconds"],
            plan=Plan.from_json(self._status["plan"]) if self._status["plan"] else None,
            states=self._network.links_in_force.states(),
            throughput=self._throughput(),
            events=tuple(self._told),
        )

    def _throughput(self) -> dict[str, float]:
        if len(self._samples) < 2:
            return {}
        before, after = self._samples[-2:]
        seconds = after["at_s"] - before["at_s"]
        return {
            link: (count - before["bytes"].get(link, count)) * 8 / seconds for link, count in after["bytes"].items()
        }

    def _sampled(self, sample: Any) -> None:
        self._samples.append(sample)
        self._directory.append("traffic.jsonl", sample)

    def _happened(self, kind: str, target: str, at_s: float | None = None) -> None:
        self._told.append(f"{kind} {target}")
        record = {"at_s": time.time() if at_s is None else at_s, "kind": kind, "target": target}
        self._directory.append("events.jsonl", record)
