"""The training phase of a run, from the first round to the last: replay, samples and events."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from testbed.emulation.errors import EmulationError
from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.testbed import Testbed
from testbed.run.errors import RunFailed
from testbed.run.guards import Guard, Watchdog
from testbed.run.live_run import RunControl
from testbed.run.measured_network import MeasuredNetwork
from testbed.run.run_log import RunLog
from testbed.run.sampler import Sampler
from testbed.run.workers import Workers
from testbed.spec.experiment import Experiment

#: Seconds between two checks of the run's parts; events happen on time to within it.
POLL_S = 0.1
#: Seconds between two requests for the controller's status; a round takes longer.
STATUS_S = 0.3
#: The time limit of one check with its due events. A network swap that measures its new links takes some ten seconds.
LOOK_S = 300.0
#: The check, as the error of an exceeded time limit names it.
LOOK = "a check of the run's parts with the events due"


@dataclass
class Outcome:
    """The results of a run, for its summary. `fidelity` has each link that the run ever had."""

    fidelity: dict[str, LinkFidelity]
    #: The shaping backend.
    backend: str
    #: Unix seconds.
    training_started_s: float
    training_ended_s: float
    #: Seconds by which each row of a link's trace was applied late.
    lateness: dict[str, list[float]]
    #: The relative errors of links' rates, by the shaper's counters.
    rate_errors: dict[str, float]
    #: The controller's last status.
    status: dict[str, Any]
    network_swaps: list[dict[str, Any]]
    #: The file's events that did not happen.
    missed_events: list[str]
    added_workers: list[dict[str, Any]] = field(default_factory=list)
    #: Faults of the other hosts that a network is split over.
    host_reasons: list[str] = field(default_factory=list)
    #: Parts of the emulation that were asked for and not used.
    idle: list[str] = field(default_factory=list)
    #: Changes that people made before the run began and that held during it, in words.
    by_hand: list[str] = field(default_factory=list)
    #: What the verdict can't judge, beside what it never can where a command trains.
    not_judged: list[str] = field(default_factory=list)


class Training:
    """One training on a measured network, with its checks, samples and events."""

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

    def execute(self, guard: Guard) -> Outcome:
        """Train until the controller says that training is over, and return the outcome.

        Raises:
            RunFailed: Training stopped early, or one check exceeded LOOK_S.
        """
        try:
            return self._execute(guard)
        except EmulationError as error:
            raise RunFailed(f"the emulation broke: {error}") from error

    def _execute(self, guard: Guard) -> Outcome:
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
                guard.allow(LOOK_S, LOOK)
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
            membership_events=self._status.get("membership_events", []),
            **testbed.record(),
            by_hand=self._run_log.by_hand,
            added_workers=self._control.changes.added,
            limits=self._workers.limits(),
        )
        if self._status["state"] == "failed":
            self._watchdog.check_host()  # a full disk or a dead engine may be why the controller failed
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
