"""How members had best train together, by what was measured: see docs/conductor.md. Pure."""

from __future__ import annotations

from testbed.planning.conductor.candidate import FIRST, Candidate, candidates
from testbed.planning.conductor.choice import Situation, Terms, Verdict, choose
from testbed.planning.conductor.history import History, Stretch
from testbed.planning.conductor.progress import Progress, learn

__all__ = [
    "FIRST",
    "Candidate",
    "History",
    "Progress",
    "Situation",
    "Stretch",
    "Terms",
    "Verdict",
    "candidates",
    "choose",
    "learn",
]
