"""Training that gossips on simulated time."""

from __future__ import annotations

from math import inf

from testbed.simulation.environment import Environment, EventSchedule
from testbed.simulation.gossip import GossipSimulation
from testbed.simulation.gossips import gossips_of
from testbed.simulation.recorder import RunRecorder
from testbed.spec.experiment import Experiment


def simulate_gossip(
    experiment: Experiment,
    environment: Environment,
    schedule: EventSchedule,
    recorder: RunRecorder,
    gradients: bool,
    until_s: float = inf,
) -> float:
    """Simulate members that gossip, to their end or to `until_s`. Returns the seconds that training took."""
    recorder.begin(experiment, "messages", gradients)
    jobs, clock = environment.controller.spec.jobs, environment.queue.clocks.monotonic
    with gossips_of(jobs, experiment.spec.own_train.model_bytes // 4, gradients, clock) as gossips:
        return GossipSimulation(environment, schedule, gossips, recorder).run(until_s)
