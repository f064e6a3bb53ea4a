"""The conductor: chooses a scheme, its local steps and a codec by the run's measurements (docs/schemes.md). Pure."""

from __future__ import annotations

from testbed.planning.conductor.candidate import Candidate, SchemeCatalog
from testbed.planning.conductor.choice import SURELY, Situation, TrainingVerdict, choose
from testbed.planning.conductor.history import TrainedHistory, TrainedStretch
from testbed.planning.conductor.progress import StepWorth, learn

__all__ = [
    "SURELY",
    "Candidate",
    "SchemeCatalog",
    "Situation",
    "StepWorth",
    "TrainedHistory",
    "TrainedStretch",
    "TrainingVerdict",
    "choose",
    "learn",
]
