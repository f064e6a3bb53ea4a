"""The training phase of a run, from the first round to the last: replay, samples and events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.emulation.errors import EmulationError
from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.testbed import Testbed
from testbed.run.changes import Changes
from testbed.run.errors import RunFailed
from testbed.run.guards import Guard
from testbed.run.live_run import RunControl
from testbed.run.measured_network import MeasuredNetwork
from testbed.run.run_log import RunLog
from testbed.run.sampler import Sampler
from testbed.run.watchdog import Watchdog
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


class Period(NamedTuple):
    """The beginning and the end of a training, in Unix seconds."""

    started_s: float
    ended_s: float


@dataclass
class Outcome:
    """The results of a run, for its summary. `fidelity` has each link that the run ever had."""

    fidelity: dict[str, LinkFidelity]
    #: The shaping backend.
    backend: str
    #: Unix seconds.
    training_started_s: float
    training_ended_s: float
    #: Seconds by which each row that changed a replayed link was applied late; empty if none did.
    lateness: dict[str, list[float]]
    #: The controller's last status.
    status: dict[str, Any]
    #: The relative errors of links' rates, by the shaper's counters.
    rate_errors: dict[str, float] = field(default_factory=dict)
    network_swaps: list[dict[str, Any]] = field(default_factory=list)
    #: The file's events that did not happen.
    missed_events: list[str] = field(default_factory=list)
    added_workers: list[dict[str, Any]] = field(default_factory=list)
    #: Faults of the other hosts that a network is split over.
    host_reasons: list[str] = field(default_factory=list)
    #: Reasons why parts of the emulation that were asked for were not used.
    idle: list[str] = field(default_factory=list)
    #: Changes that people made before the run began and that held during it, in words.
    by_hand: list[str] = field(default_factory=list)
    #: What the verdict can't judge, in addition to what it can't judge in any run whose command trains.
    not_judged: list[str] = field(default_factory=list)


class MeasuredTraining:
    """A training on a measured network, in which traces are replayed, samples taken, and `control` plays the events.

    With `tcp`, samples include each worker's TCP counters.
    """

    def __init__(
        self, testbed: Testbed, measured: MeasuredNetwork, run_log: RunLog, control: RunControl, tcp: bool = False
    ) -> None:
        self._testbed = testbed
        self._manifest, self._fidelity = measured.manifest, measured.fidelity
        self._run_log = run_log
        self._sampler = Sampler(testbed.network, run_log.sampled, tcp)
        self._control = control

    def execute(self, guard: Guard) -> Outcome:
        """Train to the end, and return the outcome.

        Raises:
            RunFailed: Training stopped early, or one check exceeded LOOK_S.
            SpecError: The experiment's command can't be run.
        """
        try:
            return self._execute(guard)
        except EmulationError as error:
            raise RunFailed(f"the emulation broke: {error}") from error

    def _execute(self, guard: Guard) -> Outcome:
        raise NotImplementedError

    def _carry_out(self, train: Callable[[ExitStack], None]) -> Period:
        """Replay, sample and take requests while `train` runs, and return its period.

        The stack that `train` gets is closed before the replay, the samples and the requests end.
        """
        began, started_s = time.monotonic(), time.time()
        self._manifest.add(training_started_s=started_s)
        with ExitStack() as stack:
            stack.callback(self._testbed.replay.stop)
            stack.callback(self._sampler.stop)
            self._testbed.replay.start(self._testbed.network.topology.links.values())
            self._sampler.start()
            stack.enter_context(self._control)
            train(stack)
            return Period(started_s, started_s + (time.monotonic() - began))

    def _check_emulation(self) -> None:
        replay, sampler = self._testbed.replay, self._sampler
        if broken := self._testbed.network.failure() or replay.failure or sampler.failure:
            raise RunFailed(f"the emulation broke: {str(broken) or repr(broken)}")

    def _record_end(self, period: Period, status: Mapping[str, Any], **more: Any) -> None:
        """Write the manifest's entries of a training that is over; `status` is the controller's last one."""
        network = self._testbed.network
        self._manifest.add(
            ended_s=period.ended_s,
            offload=network.offload,
            transport=network.transport.record(),
            membership_events=status.get("membership_events", []),
            **self._testbed.record(),
            **more,
        )

    def _outcome(self, period: Period, status: dict[str, Any], idle: Sequence[str] = ()) -> Outcome:
        self._fidelity.keep()
        network = self._testbed.network
        return Outcome(
            fidelity=self._fidelity.measured,
            backend=network.shaper.name,
            training_started_s=period.started_s,
            training_ended_s=period.ended_s,
            lateness=network.links_in_force.lateness(),
            rate_errors=self._fidelity.rate_errors,
            status=status,
            network_swaps=self._control.changes.swaps,
            missed_events=self._control.events.waiting,
            added_workers=self._control.changes.added,
            host_reasons=self._testbed.host_reasons(),
            idle=list(idle),
        )


class Training(MeasuredTraining):
    """A training by the testbed's own workers, until their controller says that it is over."""

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        watchdog: Watchdog,
        measured: MeasuredNetwork,
        run_log: RunLog,
        workers: Workers,
    ) -> None:
        client = watchdog.controller.client
        changes = Changes(experiment, testbed, client, workers, run_log.happened, measured.fidelity.follow_swap)
        super().__init__(testbed, measured, run_log, RunControl(experiment, testbed, run_log, changes, client))
        self._rounds = experiment.spec.own_train.rounds
        self._watchdog = watchdog
        self._workers = workers
        self._status: dict[str, Any] = {}

    def _execute(self, guard: Guard) -> Outcome:
        period = self._carry_out(lambda _: self._follow(guard))
        self._record_end(
            period,
            self._status,
            by_hand=self._run_log.by_hand,
            added_workers=self._control.changes.added,
            limits=self._workers.limits(),
        )
        if self._status["state"] == "failed":
            self._watchdog.check_host()  # a full disk or a dead engine may be why the controller failed
            raise RunFailed(f"training stopped: {self._status['failure']}{self._workers.deaths()}")
        return self._outcome(period, self._status)

    def _follow(self, guard: Guard) -> None:
        """Play the events and look at the run's parts until the controller says that training is over."""
        with self._run_log.display.live(self._rounds):
            asked = 0.0
            while self._status.get("state", "running") == "running":
                guard.allow(LOOK_S, LOOK)
                self._control.wait(POLL_S)
                self._control.events.play(self._testbed.replay.elapsed_s, self._status.get("round") or 0)
                for name in self._workers.look():
                    self._run_log.happened("restart", name)
                if time.monotonic() - asked >= STATUS_S:
                    asked = time.monotonic()
                    self._look()

    def _look(self) -> None:
        status = self._watchdog.status()
        self._check_emulation()
        if status is not None:
            self._status = status
            self._run_log.follow(status, self._testbed.network.links_in_force.states())
