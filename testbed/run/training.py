"""The time from the first round to the last: replay, samples and events, until the controller says that it is over."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from testbed.emulation.errors import EmulationError
from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.testbed import Testbed
from testbed.run.errors import RunFailed
from testbed.run.guards.guard import Guard
from testbed.run.guards.watchdog import Watchdog
from testbed.run.live_run import RunControl
from testbed.run.measured_network import MeasuredNetwork
from testbed.run.run_log import RunLog
from testbed.run.sampler import Sampler
from testbed.run.workers import Workers
from testbed.spec.experiment import Experiment

#: How often the run looks at its parts while training goes on; events are on time to within it.
POLL_S = 0.1
#: How often it asks the controller; a round takes longer.
STATUS_S = 0.3
#: One look, with the events that are due then. A network swap that measures its new links takes some ten seconds.
LOOK_S = 300.0


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
    added_workers: list[dict[str, Any]] = field(default_factory=list)
    host_reasons: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)  # what was asked for and did nothing


class Training:
    """One training, watched, on a network that was measured before."""

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        watchdog: Watchdog,
        measured: MeasuredNetwork,
        run_log: RunLog,
        workers: Workers,
    ) -> None:
        self._rounds = experiment.spec.own_train.rounds
        self._testbed = testbed
        self._watchdog = watchdog
        self._manifest = measured.manifest
        self._run_log = run_log
        self._fidelity = measured.fidelity
        self._workers = workers
        self._sampler = Sampler(testbed.network, run_log.sampled)
        client = watchdog.controller.client
        self._control = RunControl(experiment, testbed, run_log, self._fidelity.follow_swap, client, workers)
        self._status: dict[str, Any] = {}

    def go_on(self, guard: Guard) -> Outcome:
        """Until the controller says it is over; what there is to know then. RunFailed when it broke off, or one look
        at its parts takes longer than the guard allows."""
        try:
            return self._go_on(guard)
        except EmulationError as error:
            raise RunFailed(f"the emulation broke: {error}") from error

    def _go_on(self, guard: Guard) -> Outcome:
        testbed, replay = self._testbed, self._testbed.replay
        started, began = time.time(), time.monotonic()
        self._manifest.add(training_started_s=started)
        with ExitStack() as stack, self._run_log.live(self._rounds):
            stack.callback(replay.stop)
            stack.callback(self._sampler.stop)
            replay.start(testbed.network.topology.links.values())
            self._sampler.start()
            stack.enter_context(self._control)
            asked = 0.0
            while self._status.get("state", "running") == "running":
                guard.allow(LOOK_S, "a look at the run's parts, with the events that were due,")
                self._control.wait(POLL_S)
                self._control.play(replay.elapsed_s, self._status.get("round") or 0)
                for name in self._workers.look():
                    self._run_log.happened("restart", name)
                if time.monotonic() - asked >= STATUS_S:
                    asked = time.monotonic()
                    self._look()
        ended = started + (time.monotonic() - began)
        self._manifest.add(
            ended_s=ended,
            offload=testbed.network.offload,
            transport=testbed.network.transport.record(),
            passages=self._status.get("passages", []),
            **testbed.record(),
            by_hand=self._run_log.by_hand,
            added_workers=self._control.changes.added,
            limits=self._workers.limits(),
        )
        if self._status["state"] == "failed":
            self._watchdog.check_host()  # whoever came to feel it first
            raise RunFailed(f"training stopped: {self._status['failure']}{self._workers.deaths()}")
        self._fidelity.keep()
        return Outcome(
            fidelity=self._fidelity.measured,
            backend=testbed.network.shaper.name,
            training_started_s=started,
            training_ended_s=ended,
            lateness=testbed.network.links_in_force.lateness(),
            rate_errors=self._fidelity.rate_errors,
            status=self._status,
            network_swaps=self._control.changes.swaps,
            missed_events=self._control.missed,
            added_workers=self._control.changes.added,
            host_reasons=testbed.host_reasons(),
        )

    def _look(self) -> None:
        network = self._testbed.network
        status = self._watchdog.status()
        if broken := network.shaper.failure() or self._testbed.replay.failure or self._sampler.failure:
            raise RunFailed(f"the emulation broke: {broken}")
        if status is None:
            return
        self._status = status
        self._run_log.follow(self._status, network.links_in_force.states())
