"""Training that gossips on simulated time."""

from __future__ import annotations

from math import inf

from testbed.simulation.gossip import GossipSimulation
from testbed.simulation.gossips import gossips_of
from testbed.simulation.script import SimulatedScript
from testbed.simulation.stage import Stage
from testbed.simulation.story import SimulatedStory
from testbed.spec.experiment import Experiment


def gossiping(
    experiment: Experiment,
    stage: Stage,
    script: SimulatedScript,
    story: SimulatedStory,
    gradients: bool,
    until_s: float = inf,
) -> float:
    """Simulate members that gossip, to their end or to `until_s`. Returns the seconds that training took."""
    story.begins(experiment, "messages", gradients)
    jobs, clock = stage.controller.spec.jobs, stage.queue.clocks.monotonic
    with gossips_of(jobs, experiment.spec.own_train.model_bytes // 4, gradients, clock) as gossips:
        return GossipSimulation(stage, script, gossips, story).run(until_s)
