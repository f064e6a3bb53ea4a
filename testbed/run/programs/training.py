"""The time from a command's start to its end on all workers: replay, samples and events."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from testbed.emulation.errors import EmulationError
from testbed.emulation.testbed import Testbed
from testbed.run.errors import RunFailed
from testbed.run.guards.disk import check_room
from testbed.run.guards.guard import Guard
from testbed.run.measured import MeasuredNetwork
from testbed.run.programs.experiment_programs import ExperimentPrograms
from testbed.run.sampler import Sampler
from testbed.run.steering import Steering
from testbed.run.story import Story
from testbed.run.training import LOOK_S, Outcome
from testbed.spec.experiment import Experiment


class ProgramTraining:
    """One training by a command, watched."""

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        measured: MeasuredNetwork,
        story: Story,
        programs: ExperimentPrograms,
    ) -> None:
        self._testbed = testbed
        self._manifest = measured.manifest
        self._programs = programs
        self._fidelity = measured.fidelity
        self._sampler = Sampler(testbed.network, story.sampled, tcp=True)
        self._story = story
        self._steering = Steering(experiment, testbed, story, self._fidelity.follow_swap)

    def go_on(self, guard: Guard, directory: Path) -> Outcome:
        """Until it has ended on all workers; what there is to know then. RunFailed when it broke off, or one look at
        its parts takes longer than the guard allows; SpecError for a command that cannot be run."""
        try:
            return self._go_on(guard, directory)
        except EmulationError as error:
            raise RunFailed(f"the emulation broke: {error}") from error

    def _go_on(self, guard: Guard, directory: Path) -> Outcome:
        network, replay = self._testbed.network, self._testbed.replay
        started, began = time.time(), time.monotonic()
        self._manifest.add(training_started_s=started)

        def look() -> None:
            guard.allow(LOOK_S, "a look at the run's parts, with the events that were due,")
            self._steering.wait(0.0)
            self._steering.play(replay.elapsed_s, 0)
            self._story.tell()
            if broken := network.shaper.failure() or replay.failure or self._sampler.failure:
                raise RunFailed(f"the emulation broke: {broken}")
            check_room([directory, Path("/")])

        with ExitStack() as stack:
            stack.callback(replay.stop)
            stack.callback(self._sampler.stop)
            replay.start(network.topology.links.values())
            self._sampler.start()
            stack.enter_context(self._steering)
            stack.callback(self._programs.end)
            self._programs.start()
            self._programs.wait(look)
            ended = started + (time.monotonic() - began)
        self._manifest.add(
            ended_s=ended,
            offload=network.offload,
            transport=network.transport.record(),
            by_hand=self._story.by_hand,
            kept={worker: each.record() for worker, each in self._programs.kept.items()},
        )
        if self._programs.sums is not None:
            self._manifest.add(**{self._programs.sums.name: self._programs.sums.outcome})
        self._programs.check()
        self._fidelity.keep()
        return Outcome(
            fidelity=self._fidelity.measured,
            backend=network.shaper.name,
            training_started_s=started,
            training_ended_s=ended,
            lateness=network.links_in_force.lateness(),
            rate_errors=self._fidelity.rate_errors,
            status={"swaps": [], "passages": []},
            network_swaps=self._steering.changes.swaps,
            missed_events=self._steering.missed,
            idle=self._programs.idle(),
        )
