"""Hop's members, and those of its sites."""

from __future__ import annotations

from testbed.schemes.graph import InGraph
from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.rules import HopRules
from testbed.schemes.hop.sites import SiteLeader, SiteWorker
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Participant


def build(options: InGraph, training: GossipTraining) -> Participant:
    """The participant of an assignment, which has the rules; ValueError when it does not fit them."""
    place, parameters, iterations = training.place, training.parameters, training.iterations
    if place.protocol == "worker":
        return SiteWorker(training.name, place.rules["leader"], parameters, iterations)
    rules = HopRules(**{name: value for name, value in place.rules.items() if name != "site"})
    member = HopMember(training.neighbours, rules, parameters, iterations, place.first)
    return SiteLeader(member, place.rules["site"], iterations) if place.protocol == "leader" else member
