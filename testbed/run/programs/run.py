"""One execution of an experiment whose own command trains: a Run without the testbed's worker program.

engine, image -> shaper -> routers and links -> probe -> containers -> the command on all workers
                                                                          |  replay clock, sampler, events
summary, verdict, report  <-  everything removed, in the reverse order    <'
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

from testbed.controller.client import ControllerError
from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import Fleet
from testbed.emulation.network.holders import Namespaces, expected_to_start, idle_requests
from testbed.emulation.testbed import Testbed
from testbed.run.changes import Changes
from testbed.run.directory import RunDirectory
from testbed.run.guards import Guard
from testbed.run.live_run import RunControl
from testbed.run.measured_network import MeasuredNetwork, build_and_measure
from testbed.run.programs.experiment_programs import (
    ExperimentPrograms,
    ProgramNetwork,
    check_command,
    containers_of,
)
from testbed.run.run import BUILD_S, IMAGE_S, START_S, Execution, Run
from testbed.run.run_log import RunLog
from testbed.run.terminal.display import Display
from testbed.run.training import LOOK, LOOK_S, STATUS_S, MeasuredTraining, Outcome
from testbed.run.watchdog import EngineWatch, check_machine
from testbed.spec.experiment import Experiment
from testbed.spec.units import count

#: The time limit of ending the command and copying its files. A disk that takes 100 MB/s takes 100 GB in 17 minutes.
END_S = 3600.0


class ProgramTraining(MeasuredTraining):
    """The training of a run whose workers execute a command, until it has ended on all of them.

    `engine_watch` watches the engine of the workers' containers; it is None if the command runs on the host.
    """

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        measured: MeasuredNetwork,
        run_log: RunLog,
        programs: ExperimentPrograms,
        engine_watch: EngineWatch | None,
    ) -> None:
        records = None if programs.controller is None else programs.controller.client
        follow_swap = measured.fidelity.follow_swap
        changes = Changes(experiment, testbed, None, None, run_log.happened, follow_swap, planner=records)
        control = RunControl(experiment, testbed, run_log, changes, records)
        super().__init__(testbed, measured, run_log, control, tcp=True)
        self._programs, self._engine_watch = programs, engine_watch
        self._asked = 0.0

    def _execute(self, guard: Guard) -> Outcome:
        programs = self._programs
        period = self._carry_out(partial(self._train, guard))
        self._record_end(period, programs.status)
        programs.check()
        return self._outcome(period, programs.status, programs.idle)

    def _train(self, guard: Guard, stack: ExitStack) -> None:
        programs = self._programs
        stack.callback(lambda: self._manifest.add(**programs.record, by_hand=self._run_log.by_hand))
        stack.callback(programs.end)
        stack.callback(guard.allow, END_S, "ending the command and copying its files")
        programs.start()
        programs.wait(partial(self._look, guard))

    def _look(self, guard: Guard) -> None:
        guard.allow(LOOK_S, LOOK)
        self._control.wait(0.0)
        self._control.events.play(self._testbed.replay.elapsed_s, 0)
        self._show_progress()
        self._run_log.tell()
        self._check_emulation()
        check_machine([self._run_log.directory.path, Path("/")], self._engine_watch)

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
        with suppress(ControllerError):  # the controller is busy; if it has ended, `wait` fails
            status = self._programs.controller.client.status()
            # The programs decide how many rounds there are.
            self._run_log.keep({**status, "rounds": None, **printed})


class ProgramRun(Execution):
    """The execution of an experiment whose command trains, on a network of its own.

    Raises:
        SpecError: One command would make each worker train alone, or the command's files can't be read.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        super().__init__(experiment, directory, display)
        check_command(experiment)
        self._containers = containers_of(experiment)

    def _execute(self, strict: bool, guard: Guard) -> Outcome:
        experiment, directory, display = self.experiment, self.directory, self.display
        run_log = RunLog(directory, display)
        testbed = self.testbed(run_log, guard)
        fleet: Fleet | None = None
        containers = self._containers
        if containers is not None:
            guard.allow(IMAGE_S, "making the image")
            with display.step("Docker engine and image"):
                fleet = Fleet.connected(testbed.name, testbed.control, containers)
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
        if fleet is not None:
            limits = fleet.limits.record(workers) if fleet.limits else {}
            measured.manifest.add(**fleet.image_record(), limits=limits, docker_client=engine.CLIENT_RECORD)
        programs = ExperimentPrograms(
            experiment, ProgramNetwork.of(testbed), fleet.client if fleet else None, directory, display
        )
        display.say(
            f"  {testbed.name} is up: `testbed link set A-B --rate 5mbit` changes it, `testbed network exec` enters it"
        )
        watch = guard.enter_context(EngineWatch()) if fleet else None
        return ProgramTraining(experiment, testbed, measured, run_log, programs, watch).execute(guard)


def run_of(experiment: Experiment, directory: RunDirectory, display: Display) -> Execution:
    """Return the execution of an experiment: a ProgramRun if its command trains, a Run otherwise.

    Raises:
        SpecError: The scheme does not take the experiment's workers or graphs, or its command can't be run.
    """
    experiment.check_one_host()
    if experiment.spec.program is not None:
        return ProgramRun(experiment, directory, display)
    return Run(experiment, directory, display)
