"""Hop's members, and those of its sites."""

from __future__ import annotations

from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.rules import HopRules
from testbed.schemes.hop.sites import SiteLeader, SiteWorker
from testbed.schemes.options import InGraph
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Participant


def build(options: InGraph, training: GossipTraining) -> Participant:
    """The participant of an assignment, which has the rules; ValueError when it does not fit them."""
    node, parameters, iterations = training.node, training.parameters, training.iterations
    if node.protocol == "worker":
        return SiteWorker(training.name, node.rules["leader"], parameters, iterations)
    rules = HopRules(**{name: value for name, value in node.rules.items() if name != "site"})
    member = HopMember(training.neighbours, rules, parameters, iterations, node.first)
    return SiteLeader(member, node.rules["site"], iterations) if node.protocol == "leader" else member
