"""A training on simulated time, with its records in a run's directory."""

from __future__ import annotations

from contextlib import closing
from math import inf

from testbed.emulation.network.routing import Routes
from testbed.run.directory import RunDirectory
from testbed.run.terminal.display import Display
from testbed.run.training import Outcome
from testbed.simulation.outcome import outcome_of
from testbed.simulation.round_simulation import simulate_rounds
from testbed.simulation.script import SimulatedScript
from testbed.simulation.stage import Stage
from testbed.simulation.story import SimulatedStory
from testbed.spec.experiment import Experiment


def train(
    experiment: Experiment,
    directory: RunDirectory,
    display: Display,
    gradients: bool,
    routes: Routes | None = None,
    until_s: float = inf,
) -> Outcome:
    """Simulate a training.

    Args:
        experiment: The experiment.
        directory: Where the records are written.
        display: Shows the progress.
        gradients: Whether members learn for real.
        routes: The network's routes at the start, where they are known already.
        until_s: Seconds after training began at which it is cut off: members then say no goodbye, as those of a run
            that is interrupted.

    Raises:
        RunFailed: a round can't come to its end.
    """
    stage = Stage.of(experiment, directory.path, routes or Routes.over(experiment.topology))
    story = SimulatedStory(directory, display, stage)
    simulate = simulate_rounds
    if experiment.spec.sync.scheme.exchange == "gossip":
        from testbed.simulation.gossip_training import (
            gossiping,
        )  # loads PyTorch, which rounds without gradients need not

        simulate = gossiping
    with closing(stage.controller), display.live(experiment.spec.own_train.rounds):
        script = SimulatedScript(experiment, stage, story.happened)
        ended_s = simulate(experiment, stage, script, story, gradients, until_s)
    story.ended(ended_s)
    return outcome_of(stage, script, ended_s)
