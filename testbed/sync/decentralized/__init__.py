"""Decentralized training without a centre, as protocols without a transport: a driver carries out their effects."""

from __future__ import annotations

from testbed.sync.decentralized.effects import Advance, Compute, Effect, Member, Message, Send, Step, Steps, Until
from testbed.sync.decentralized.hop import HopMember, HopRules
from testbed.sync.decentralized.neighbours import Neighbours

__all__ = [
    "Advance",
    "Compute",
    "Effect",
    "HopMember",
    "HopRules",
    "Member",
    "Message",
    "Neighbours",
    "Send",
    "Step",
    "Steps",
    "Until",
]
