"""A training on simulated time, with its records in a run's directory."""

from __future__ import annotations

from contextlib import closing

from testbed.run.directory import RunDirectory
from testbed.run.display import Display
from testbed.run.training import Outcome
from testbed.simulation.compute import DeclaredMembers
from testbed.simulation.learning import learning_of
from testbed.simulation.models import congestion_of, measures, model_of
from testbed.simulation.outcome import outcome_of
from testbed.simulation.script import SimulatedScript
from testbed.simulation.simulation import Simulation
from testbed.simulation.stage import Stage
from testbed.simulation.story import SimulatedStory
from testbed.spec.experiment import Experiment


def train(experiment: Experiment, directory: RunDirectory, display: Display, gradients: bool) -> Outcome:
    """The whole of it. RunFailed when a round can't come to its end."""
    stage = Stage.of(experiment, directory.path)
    jobs, rounds = stage.controller.spec.jobs, experiment.spec.own_train.rounds
    model, story = model_of(experiment, stage.underlay), SimulatedStory(directory, display, stage)
    how = {"model": model.name, "congestion": congestion_of(experiment), "gradients": gradients}
    story.begins(experiment, how)
    elements = experiment.spec.own_train.model_bytes // 4
    members = learning_of(jobs, elements, gradients, lambda: stage.controller.plan)
    with closing(stage.controller), members as learning, display.live(rounds):
        script = SimulatedScript(experiment, stage, story.happened)
        declared = DeclaredMembers.of(jobs, measures(experiment, model), experiment.spec.sync.own.overlaps)
        ended_s = Simulation(stage, script, model, declared, learning, story).run()
    story.ended(ended_s)
    return outcome_of(stage, script, ended_s)
