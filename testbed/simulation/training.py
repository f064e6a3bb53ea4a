"""A training on simulated time, with its records in a run's directory."""

from __future__ import annotations

from contextlib import closing

from testbed.emulation.network.routing import Routes
from testbed.run.directory import RunDirectory
from testbed.run.terminal.display import Display
from testbed.run.training import Outcome
from testbed.simulation.outcome import outcome_of
from testbed.simulation.round_training import in_rounds
from testbed.simulation.script import SimulatedScript
from testbed.simulation.stage import Stage
from testbed.simulation.story import SimulatedStory
from testbed.spec.experiment import Experiment


def train(
    experiment: Experiment, directory: RunDirectory, display: Display, gradients: bool, routes: Routes | None = None
) -> Outcome:
    """The whole of it; `routes` are those of the network at the start, where they are known already. RunFailed when a
    round can't come to its end."""
    stage = Stage.of(experiment, directory.path, routes or Routes.over(experiment.topology))
    story = SimulatedStory(directory, display, stage)
    simulate = in_rounds
    if experiment.spec.sync.scheme.exchange == "gossip":
        from testbed.simulation.gossip_training import (
            gossiping,
        )  # loads PyTorch, which rounds without gradients need not

        simulate = gossiping
    with closing(stage.controller), display.live(experiment.spec.own_train.rounds):
        script = SimulatedScript(experiment, stage, story.happened)
        ended_s = simulate(experiment, stage, script, story, gradients)
    story.ended(ended_s)
    return outcome_of(stage, script, ended_s)
