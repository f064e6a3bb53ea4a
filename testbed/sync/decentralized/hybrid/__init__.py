"""The CPN framework's hybrid synchronization (JICN 2025, 10.64509/jicn.12.39), by our reading, without a transport."""

from __future__ import annotations

from testbed.sync.decentralized.hybrid.copy import GlobalSlice
from testbed.sync.decentralized.hybrid.member import HybridMember
from testbed.sync.decentralized.hybrid.rules import HybridRules, Team, accumulated

__all__ = ["GlobalSlice", "HybridMember", "HybridRules", "Team", "accumulated"]
