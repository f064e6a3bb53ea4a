"""Decentralized training without a centre, as protocols without a transport: a driver carries out their effects.

D-PSGD is `HopMember` in the standard mode with Metropolis weights.
"""

from __future__ import annotations

from testbed.sync.decentralized.adpsgd import ActiveMember, PassiveMember
from testbed.sync.decentralized.effects import (
    Advance,
    Compute,
    Effect,
    Member,
    Message,
    Party,
    Send,
    Step,
    Steps,
    Until,
)
from testbed.sync.decentralized.hop import HopMember, HopRules
from testbed.sync.decentralized.neighbours import Neighbours
from testbed.sync.decentralized.netmax import NetMaxMember, pull_probabilities
from testbed.sync.decentralized.prague import GroupGenerator, PragueMember
from testbed.sync.decentralized.pushsum import PushSumMember

__all__ = [
    "ActiveMember",
    "Advance",
    "Compute",
    "Effect",
    "GroupGenerator",
    "HopMember",
    "HopRules",
    "Member",
    "Message",
    "Neighbours",
    "NetMaxMember",
    "Party",
    "PassiveMember",
    "PragueMember",
    "PushSumMember",
    "Send",
    "Step",
    "Steps",
    "Until",
    "pull_probabilities",
]
