"""One execution of an experiment whose own command trains: like a Run, without our controller and worker program.

engine, image -> shaper -> routers and links -> probe -> containers -> the command on all workers
                                                                          |  replay clock, sampler, events
summary, verdict, report  <-  everything removed, in the reverse order    <'
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from testbed.controller.client import ControllerError
from testbed.emulation.containers.fleet import Fleet
from testbed.emulation.errors import EmulationError
from testbed.emulation.network.holders import Namespaces, expected_to_start, idle_requests
from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.errors import RunFailed
from testbed.run.guards import Guard, check_room
from testbed.run.live_run import RunControl
from testbed.run.measured_network import MeasuredNetwork, build_and_measure
from testbed.run.programs.experiment_programs import (
    ExperimentContainers,
    ExperimentPrograms,
    ProgramNetwork,
    check_command,
)
from testbed.run.programs.standing import StandingRun
from testbed.run.run import BUILD_S, IMAGE_S, START_S, Run
from testbed.run.run_log import RunLog
from testbed.run.sampler import Sampler
from testbed.run.terminal.display import Display
from testbed.run.training import LOOK, LOOK_S, STATUS_S, Outcome
from testbed.spec.experiment import Experiment
from testbed.spec.units import count


class ProgramTraining:
    """One training by a command, with its checks, samples and events."""

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        measured: MeasuredNetwork,
        run_log: RunLog,
        programs: ExperimentPrograms,
    ) -> None:
        self._testbed = testbed
        self._manifest = measured.manifest
        self._programs = programs
        self._fidelity = measured.fidelity
        self._sampler = Sampler(testbed.network, run_log.sampled, tcp=True)
        self._run_log = run_log
        records = None if programs.controller is None else programs.controller.client
        self._control = RunControl(experiment, testbed, run_log, self._fidelity.follow_swap, records=records)
        self._asked = 0.0

    def execute(self, guard: Guard, directory: Path) -> Outcome:
        """Run the command until it has ended on all workers, and return the outcome.

        Raises:
            RunFailed: The command failed on a worker, or one check exceeded LOOK_S.
            SpecError: The command can't be run.
        """
        try:
            return self._execute(guard, directory)
        except EmulationError as error:
            raise RunFailed(f"the emulation broke: {error}") from error

    def _execute(self, guard: Guard, directory: Path) -> Outcome:
        network, replay = self._testbed.network, self._testbed.replay
        started, began = time.time(), time.monotonic()
        self._manifest.add(training_started_s=started)

        def look() -> None:
            guard.allow(LOOK_S, LOOK)
            self._control.wait(0.0)
            self._control.play(replay.elapsed_s, 0)
            self._show_progress()
            self._run_log.tell()
            if broken := network.shaper.failure() or replay.failure or self._sampler.failure:
                raise RunFailed(f"the emulation broke: {broken}")
            check_room([directory, Path("/")])

        with ExitStack() as stack:
            stack.callback(replay.stop)
            stack.callback(self._sampler.stop)
            replay.start(network.topology.links.values())
            self._sampler.start()
            stack.enter_context(self._control)
            stack.callback(lambda: self._manifest.add(**self._programs.record, by_hand=self._run_log.by_hand))
            stack.callback(self._programs.end)
            self._programs.start()
            self._programs.wait(look)
            ended = started + (time.monotonic() - began)
        self._manifest.add(
            ended_s=ended,
            offload=network.offload,
            transport=network.transport.record(),
            membership_events=self._programs.status["membership_events"],
        )
        self._programs.check()
        self._fidelity.keep()
        return Outcome(
            fidelity=self._fidelity.measured,
            backend=network.shaper.name,
            training_started_s=started,
            training_ended_s=ended,
            lateness=network.links_in_force.lateness(),
            rate_errors=self._fidelity.rate_errors,
            status=self._programs.status,
            network_swaps=self._control.changes.swaps,
            missed_events=self._control.missed,
            idle=self._programs.idle,
        )

    def _show_progress(self) -> None:
        """Pass the controller's status and the figures that the programs printed on to the page, every STATUS_S."""
        if time.monotonic() - self._asked < STATUS_S:
            return
        self._asked = time.monotonic()
        printed = {"metrics": self._programs.figures.newest}
        self._run_log.curves = self._programs.figures.curves
        if self._programs.controller is None:
            self._run_log.show(printed)
            return
        with suppress(ControllerError):  # it is busy; a controller that has ended fails the wait
            status = self._programs.controller.client.status()
            # The programs decide how many rounds there are, so none is known to be the last.
            self._run_log.keep({**status, "rounds": status["round"] or 0, **printed})


class ProgramRun:
    """The execution of an experiment whose command trains, on a network of its own. It writes into its directory.

    Raises:
        SpecError: One command would make each worker train alone, or the command's files can't be read.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        self.experiment = experiment
        self.directory = directory
        self.display = display
        #: Whether the experiment fits the host's budget; None until that was checked.
        self.fits: bool | None = None
        check_command(experiment)
        program = experiment.spec.program
        assert program is not None
        self._containers = None if program.on_host else ExperimentContainers(experiment)

    def execute(self, strict: bool = False) -> Outcome:
        """Execute the whole run as `Run.execute` does."""
        with Guard() as guard:
            return self._execute(strict, guard)

    def _execute(self, strict: bool, guard: Guard) -> Outcome:
        experiment, directory, display = self.experiment, self.directory, self.display
        run_log = RunLog(directory, display)
        testbed = Testbed(
            experiment.topology,
            name=directory.id,
            backend=experiment.spec.backend,
            fit_transport=experiment.spec.transport == "fitted",
            observer=run_log.put_in_force,
            step=display.step,
        )
        fleet: Fleet | None = None
        containers = self._containers
        if containers is not None:
            guard.allow(IMAGE_S, "making the image")
            with display.step("Docker engine and image"):
                fleet = containers.fleet(testbed)
        guard.allow(BUILD_S, "building the network")
        guard.enter_context(closing(testbed))
        measured = build_and_measure(experiment, testbed, fleet.image if fleet else None, directory, display, strict)
        self.fits = measured.fits
        guard.allow(START_S, "starting the workers")
        workers, where = experiment.topology.workers, "containers" if fleet else "namespaces"
        requests = idle_requests(workers, containers.files if containers else None)
        with display.step(f"{count(len(workers), 'worker')} in {where}"), expected_to_start():
            testbed.start(fleet or Namespaces(), requests)
        measured.manifest.add(transport=testbed.network.transport.record())
        if containers is not None and fleet is not None:
            measured.manifest.add(**containers.record(fleet))
        programs = ExperimentPrograms(
            experiment, ProgramNetwork.of(testbed), fleet.client if fleet else None, directory, display
        )
        display.say(
            f"  {testbed.name} is up: `testbed link set A-B --rate 5mbit` changes it, `testbed network exec` enters it"
        )
        return ProgramTraining(experiment, testbed, measured, run_log, programs).execute(guard, directory.path)


#: Any kind of execution.
AnyRun = Run | ProgramRun | StandingRun


def run_of(experiment: Experiment, directory: RunDirectory, display: Display) -> AnyRun:
    """Return the execution of an experiment: a ProgramRun if its command trains, a Run otherwise.

    Raises:
        SpecError: The scheme does not take the experiment's workers or graphs, or its command can't be run.
    """
    experiment.check_one_host()
    if experiment.spec.program is not None:
        return ProgramRun(experiment, directory, display)
    return Run(experiment, directory, display)
