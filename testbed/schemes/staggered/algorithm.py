"""Members of staggered groups."""

from __future__ import annotations

from testbed.schemes.staggered import StaggeredOptions
from testbed.schemes.staggered.member import StaggeredMember
from testbed.schemes.staggered.rules import StaggeredRules
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Participant


def build(options: StaggeredOptions, training: GossipTraining) -> Participant:
    """The participant in its group; where samples are not told, all members count alike."""
    samples = training.samples or [1.0] * len(training.members)
    counted = dict(zip(training.members, samples, strict=True))
    rules = StaggeredRules.from_json(training.node.rules, training.iterations, counted)
    return StaggeredMember(training.name, rules, training.parameters)
