"""One execution of an experiment: build, measure, train while things happen, take away, judge.

    engine, image -> shaper -> routers and links -> probe -> controller -> containers -> training
                                                                             |  replay clock, sampler, events
    summary, verdict, report  <-  everything taken away, in the reverse order <'

Whatever ends a run (its last round, an error, Ctrl-C, the watchdog), the way back is the same: a Guard. It also ends
what takes longer than it may.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rich.markup import escape

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import Fleet
from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.guards.guard import Guard
from testbed.run.guards.watchdog import Watchdog
from testbed.run.jobs import Jobs
from testbed.run.measured_network import build_and_measure
from testbed.run.run_log import RunLog
from testbed.run.terminal.display import Display
from testbed.run.training import Outcome, Training
from testbed.run.workers import Workers
from testbed.spec.experiment import Experiment
from testbed.spec.units import count

#: How long each part may take before the run ends for it. 16 containers start in 14 s on two cores; the image's
#: packages may come over a slow network, the first time.
IMAGE_S = 3600.0
BUILD_S = START_S = 600.0


class Run:
    """An experiment being executed, writing into its directory. Whether it `fits` the host's budget is known once that
    was looked at."""

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        """SpecError when its workers or graphs are not for its scheme."""
        self.experiment = experiment
        self.directory = directory
        self.display = display
        self.fits: bool | None = None
        self._jobs = Jobs(experiment)

    def execute(self, strict: bool = False) -> Outcome:
        """The whole run; everything it made is gone when this returns or raises.

        When the experiment asks for more than the host's measured budget, that is said before anything is built;
        `strict` refuses then, with TooMuch.
        """
        with Guard() as guard:
            return self._execute(strict, guard)

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
            display.say(f"  [yellow]{escape(f'{what} could not be set: {reason}')}[/]")
        watchdog = guard.enter_context(Watchdog(experiment, controller, directory.path))
        with display.step("workers loaded and joined"):
            workers.wait_until_joined(watchdog)
        training = Training(experiment, testbed, watchdog, measured, run_log, workers)
        return training.go_on(guard)

    def testbed(self, run_log: RunLog, guard: Guard) -> Testbed:
        """What the network is to be on, yet to be opened."""
        experiment = self.experiment
        return Testbed(
            experiment.topology,
            name=self.directory.id,
            backend=experiment.spec.backend,
            fit_transport=experiment.spec.transport == "fitted",
            observer=run_log.put_in_force,
            step=self.display.step,
        )

    def connect(self, testbed: Testbed, guard: Guard) -> None:
        """Have workers find the controller; those on this host do by themselves."""

    def fleet(self, network: str, control: Path) -> Fleet:
        """Where the workers of a network of this name will run, and find the control socket's folder."""
        return Fleet.connected(network, control)
