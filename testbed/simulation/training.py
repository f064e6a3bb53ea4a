"""A training on simulated time, with its records in a run's directory."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext

from testbed.controller.outcome import status
from testbed.run.directory import RunDirectory
from testbed.run.display import Display
from testbed.run.jobs import Jobs
from testbed.run.manifest import Manifest
from testbed.run.training import Outcome
from testbed.run.verdict import SIMULATED
from testbed.simulation.chunks import ChunkModel
from testbed.simulation.compute import declared
from testbed.simulation.learning import Learning, NoLearning
from testbed.simulation.script import SimulatedScript
from testbed.simulation.simulation import Simulation
from testbed.simulation.stage import Stage
from testbed.simulation.story import SimulatedStory
from testbed.spec.experiment import Experiment


def train(experiment: Experiment, directory: RunDirectory, display: Display, gradients: bool) -> Outcome:
    """The whole of it. RunFailed when a round can't come to its end."""
    jobs = Jobs(experiment)
    stage = Stage.of(experiment, jobs, directory.path)
    manifest = Manifest(directory, experiment, backend=SIMULATED)
    rounds = experiment.spec.own_train.rounds
    with closing(stage.controller), _learning(stage, gradients) as learning, display.live(rounds):
        story = SimulatedStory(directory, display, stage)
        script = SimulatedScript(experiment, stage, story.happened)
        model = ChunkModel(stage.underlay, experiment.spec.round_bytes, experiment.spec.sync.round_timeout)
        compute = declared(experiment, jobs.workloads)
        simulation = Simulation(stage, script, model, compute, learning, story)
        began_s = stage.agenda.clocks.zero_s
        manifest.add(
            training_started_s=began_s,
            simulated={"model": simulation.model.name, "gradients": gradients},
            passages=[],
            **jobs.groups,
        )
        ended_s = began_s + simulation.run(rounds)
    manifest.add(ended_s=ended_s)
    return Outcome(
        fidelity={},
        backend=SIMULATED,
        training_started_s=began_s,
        training_ended_s=ended_s,
        lateness={},
        rate_errors={},
        status=status(stage.controller),
        network_swaps=simulation.script.swaps,
        missed_events=list(simulation.script.waiting),
    )


def _learning(stage: Stage, gradients: bool) -> AbstractContextManager[Learning]:
    """PyTorch is loaded where something is learned alone."""
    if not gradients:
        return nullcontext(NoLearning())
    from testbed.simulation.gradients import learning_of

    return learning_of(stage.controller.spec.jobs)
