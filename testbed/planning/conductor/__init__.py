"""How members had best train together, by what was measured: see docs/schemes.md. Pure."""

from __future__ import annotations

from testbed.planning.conductor.candidate import FIRST, Candidate, candidates
from testbed.planning.conductor.choice import CandidateTerms, Situation, TrainingVerdict, choose
from testbed.planning.conductor.history import TrainedHistory, TrainedStretch
from testbed.planning.conductor.progress import StepWorth, learn

__all__ = [
    "FIRST",
    "Candidate",
    "CandidateTerms",
    "Situation",
    "StepWorth",
    "TrainedHistory",
    "TrainedStretch",
    "TrainingVerdict",
    "candidates",
    "choose",
    "learn",
]
