"""One execution of an experiment that trains by a command: as a Run, without a controller and workers of ours.

engine, image -> shaper -> routers and links -> probe -> containers -> the command on all workers
                                                                          |  replay clock, sampler, events
summary, verdict, report  <-  everything taken away, in the reverse order <'
"""

from __future__ import annotations

from contextlib import closing

from testbed.emulation.testbed import Testbed
from testbed.run.directory import RunDirectory
from testbed.run.guards.guard import Guard
from testbed.run.measured import build
from testbed.run.programs.containers import ExperimentContainers
from testbed.run.programs.experiment_programs import ExperimentPrograms, check_command
from testbed.run.programs.training import ProgramTraining
from testbed.run.run import BUILD_S, IMAGE_S, START_S, Run
from testbed.run.story import Story
from testbed.run.terminal.display import Display
from testbed.run.training import Outcome
from testbed.spec.experiment import Experiment
from testbed.spec.units import count


class ProgramRun:
    """An experiment being executed, writing into its directory. Whether its rates `fit` the host's budget is known once
    that was looked at."""

    def __init__(self, experiment: Experiment, directory: RunDirectory, display: Display) -> None:
        self.experiment = experiment
        self.directory = directory
        self.display = display
        self.fits: bool | None = None
        check_command(experiment)
        self._containers = ExperimentContainers(experiment)

    def execute(self, strict: bool = False) -> Outcome:
        """The whole run, as `Run.execute`."""
        with Guard() as guard:
            return self._execute(strict, guard)

    def _execute(self, strict: bool, guard: Guard) -> Outcome:
        experiment, directory, display = self.experiment, self.directory, self.display
        story = Story(directory, display)
        testbed = Testbed(
            experiment.topology,
            name=directory.id,
            backend=experiment.spec.backend,
            fit_transport=experiment.spec.transport == "fitted",
            observer=story.put_in_force,
            step=display.step,
        )
        guard.allow(IMAGE_S, "making the image")
        with display.step("Docker engine and image"):
            fleet = self._containers.fleet(testbed)
        guard.allow(BUILD_S, "building the network")
        guard.enter_context(closing(testbed))
        measured = build(experiment, testbed, fleet.image, directory, display, strict)
        self.fits = measured.fits
        guard.allow(START_S, "starting the containers")
        with display.step(f"{count(len(experiment.topology.workers), 'worker')} in containers"):
            testbed.start(fleet, self._containers.requests())
        measured.manifest.add(transport=testbed.network.transport.record(), **self._containers.record(fleet))
        programs = ExperimentPrograms(experiment, testbed, fleet.client, directory, display.pass_on)
        return ProgramTraining(experiment, testbed, measured, story, programs).go_on(guard, directory.path)


#: What executes an experiment.
AnyRun = Run | ProgramRun


def run_of(experiment: Experiment, directory: RunDirectory, display: Display) -> AnyRun:
    """What executes an experiment. SpecError when its workers or graphs are not for its scheme, or its command may not
    read its files."""
    experiment.check_one_host()
    if experiment.spec.program is not None:
        return ProgramRun(experiment, directory, display)
    return Run(experiment, directory, display)
