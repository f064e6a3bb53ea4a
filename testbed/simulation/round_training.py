"""Training in rounds on simulated time."""

from __future__ import annotations

from math import inf

from testbed.simulation.compute import DeclaredMembers
from testbed.simulation.learning import learning_of
from testbed.simulation.models import congestion_of, elements_of, measures, model_of
from testbed.simulation.script import SimulatedScript
from testbed.simulation.simulation import Simulation
from testbed.simulation.stage import Stage
from testbed.simulation.story import SimulatedStory
from testbed.spec.experiment import Experiment


def in_rounds(
    experiment: Experiment,
    stage: Stage,
    script: SimulatedScript,
    story: SimulatedStory,
    gradients: bool,
    until_s: float = inf,
) -> float:
    """Simulate members that reduce in rounds, to their end or to `until_s`. Returns the seconds that training took."""
    jobs, model = stage.controller.spec.jobs, model_of(experiment, stage.network)
    story.begins(experiment, {"model": model.name, "congestion": congestion_of(experiment), "gradients": gradients})
    declared = DeclaredMembers.of(jobs, measures(experiment, model), experiment.spec.sync.own.overlaps)
    with learning_of(jobs, elements_of(experiment), gradients, lambda: stage.controller.plan) as learning:
        return Simulation(stage, script, model, declared, learning, story).run(until_s)
