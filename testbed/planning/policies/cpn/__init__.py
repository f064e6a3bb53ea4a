"""The topology heuristic of the CPN framework (JICN 2025, 10.64509/jicn.12.39), by our reading of its abstract.

Groups of members synchronize tightly inside and loosely between each other. The heuristic chooses the members of each
group, its leader, the order of its ring, and how often and when it exchanges with the other groups. Every choice
minimises one cost J (`terms`, `schedule`).
"""

from __future__ import annotations

from testbed.planning.policies.cpn.policy import Cpn
from testbed.planning.policies.cpn.schedule import Prices, schedule
from testbed.planning.policies.cpn.search import search
from testbed.planning.policies.cpn.terms import Costs, Problem, Terms

__all__ = ["Costs", "Cpn", "Prices", "Problem", "Terms", "schedule", "search"]
