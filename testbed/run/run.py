"""One execution of an experiment: build, measure, train while events happen, clean up.

    engine, image -> shaper -> routers and links -> probe -> controller -> containers -> training
                                                                             |  replay clock, sampler, events
    summary, verdict, report  <-  everything removed, in the reverse order  <'

Whatever ends a run (its last round, an error, Ctrl-C, the watchdog), the same Guard cleans up. The Guard also ends a
phase that exceeds its time limit.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rich.markup import escape

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import Fleet
from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.guards import Guard
from testbed.run.jobs import Jobs
from testbed.run.measured_network import build_and_measure
from testbed.run.run_log import RunLog
from testbed.run.terminal.display import Display
from testbed.run.training import Outcome, Training
from testbed.run.watchdog import Watchdog
from testbed.run.workers import Workers
from testbed.spec.experiment import Experiment
from testbed.spec.units import count

#: The time limits of the phases. 16 containers start in 14 s on two cores; the first time, the image's packages may
#: come over a slow network.
IMAGE_S = 3600.0
BUILD_S = START_S = 600.0


class Execution:
    """One execution of an experiment, which writes into its directory.

    Attributes:
        fits: Whether the experiment fits the host's budget; None until that was checked.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        self.experiment = experiment
        self.directory = directory
        self.display = display
        self.fits: bool | None = None

    def execute(self, strict: bool = False) -> Outcome:
        """Execute the whole run, and return its outcome. Everything that it made is removed, also after an exception.

        `strict` refuses an experiment that exceeds the host's measured budget, instead of warning.

        Raises:
            TooMuch: The experiment exceeds the budget, and `strict` is set.
            CannotRun: This machine can't run the experiment.
            RunFailed: Training did not finish.
        """
        with Guard() as guard:
            return self._execute(strict, guard)

    def _execute(self, strict: bool, guard: Guard) -> Outcome:
        raise NotImplementedError

    def testbed(self, run_log: RunLog, guard: Guard) -> Testbed:
        """Return the testbed of the network, which is not open yet."""
        experiment = self.experiment
        return Testbed(
            experiment.topology,
            name=self.directory.id,
            backend=experiment.spec.backend,
            fit_transport=experiment.spec.transport == "fitted",
            observer=run_log.put_in_force,
            step=self.display.step,
        )


class Run(Execution):
    """The execution of an experiment whose model the testbed's own workers train.

    Raises:
        SpecError: The scheme does not accept the experiment's workers or graphs.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        super().__init__(experiment, directory, display)
        self._jobs = Jobs(experiment)

    def _execute(self, strict: bool, guard: Guard) -> Outcome:
        experiment, directory, display, jobs = self.experiment, self.directory, self.display, self._jobs
        run_log = RunLog(directory, display)
        testbed = self.testbed(run_log, guard)
        guard.allow(IMAGE_S, "making the worker image")
        with display.step("Docker engine and worker image"):
            fleet = self.fleet(testbed.name, testbed.control)
        guard.allow(BUILD_S, "building the network")
        guard.enter_context(closing(testbed))
        measured = build_and_measure(experiment, testbed, fleet.image, directory, display, strict)
        self.fits, manifest = measured.fits, measured.manifest
        manifest.add(**fleet.image_record(), docker_client=engine.CLIENT_RECORD, **jobs.groups)
        controller = guard.enter_context(jobs.controller(testbed, directory.path))
        workers = Workers(testbed, fleet, jobs, experiment.spec.elastic, directory)
        guard.callback(workers.end)
        guard.allow(START_S, "starting the workers")
        with display.step(f"{count(len(experiment.topology.workers), 'worker')} in containers"):
            self.connect(testbed, guard)
            workers.start()
        manifest.add(transport=testbed.network.transport.record(), limits=workers.limits())
        for what, reason in (*testbed.network.transport.refused.items(), *workers.unlimited().items()):
            display.say(f"  [yellow]{escape(f'WARNING: {what} could not be set: {reason}')}[/]")
        watchdog = guard.enter_context(Watchdog(experiment, controller, directory.path, self.broken))
        with display.step("workers loaded and joined"):
            workers.wait_until_joined(watchdog)
        training = Training(experiment, testbed, watchdog, measured, run_log, workers)
        return training.execute(guard)

    def connect(self, testbed: Testbed, guard: Guard) -> None:
        """Make the controller reachable for the workers on other hosts."""

    def broken(self) -> str | None:
        """Return why workers no longer reach the controller; None while they do. Workers on this host always do."""
        return None

    def fleet(self, network: str, control: Path) -> Fleet:
        """Return the fleet in which the workers of `network` run, with the folder of the control sockets."""
        return Fleet.connected(network, control)
