"""Hop (arXiv 1902.01064): decentralized training whose members may be of unequal and changing speed."""

from __future__ import annotations

from testbed.sync.decentralized.hop.member import HopMember
from testbed.sync.decentralized.hop.rules import HopRules

__all__ = ["HopMember", "HopRules"]
