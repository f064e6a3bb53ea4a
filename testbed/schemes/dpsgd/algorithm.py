"""D-PSGD's members run Hop in its standard mode."""

from __future__ import annotations

from testbed.schemes.dpsgd import DpsgdOptions
from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.rules import HopRules
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Participant


def build(options: DpsgdOptions, training: GossipTraining) -> Participant:
    """The participant at a member's place; ValueError when it is none."""
    rules = HopRules(**training.place.rules)
    return HopMember(training.neighbours, rules, training.parameters, training.iterations, training.place.first)
