"""The CPN framework's topology heuristic (JICN 2025, 10.64509/jicn.12.39), by our reading of its abstract.

Groups that synchronize tightly inside and loosely between: which members form one, which member speaks for it, in what
ring it reduces, how often and when it exchanges with the others. All of it minimises one cost J (`terms`, `schedule`).
"""

from __future__ import annotations

from testbed.planning.policies.cpn.policy import Cpn
from testbed.planning.policies.cpn.problem import Problem
from testbed.planning.policies.cpn.schedule import Prices, Schedule, schedule
from testbed.planning.policies.cpn.search import Grouping, search
from testbed.planning.policies.cpn.terms import Costs, Terms

__all__ = ["Costs", "Cpn", "Grouping", "Prices", "Problem", "Schedule", "Terms", "schedule", "search"]
