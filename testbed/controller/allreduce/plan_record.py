"""The plans that were handed out, in the run's directory."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.plan import Plan
from testbed.telemetry.store import write_json


class PlanRecord:
    """A file for each plan in `folder`, named by its epoch: written before any member is told of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, plan: Plan) -> None:
        """Keep a plan."""
        write_json(self._file(plan.epoch), plan.to_json())

    def find(self, epoch: int) -> Plan | None:
        """The plan of an epoch; None where none was handed out."""
        file = self._file(epoch)
        return Plan.from_json(json.loads(file.read_text())) if file.exists() else None

    def _file(self, epoch: int) -> Path:
        return self._folder / f"{epoch:04d}.json"
