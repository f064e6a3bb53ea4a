"""What members report, as they said it, in the run's directory."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from testbed.protocol import Arrived, ControlMessage, Report
from testbed.telemetry.store import Records


class ReportLog:
    """Writes `rounds.jsonl`, members' reports of rounds, and `arrivals.jsonl`, what came in during long ones."""

    def __init__(self, out: Path) -> None:
        self._files = {Report: Records(out / "rounds.jsonl"), Arrived: Records(out / "arrivals.jsonl")}

    def add(self, message: ControlMessage) -> None:
        """Keep a message, if it is a report."""
        if isinstance(message, Report | Arrived):
            self._files[type(message)].append({"at_s": time.time(), **asdict(message)})

    def close(self) -> None:
        """Nothing is recorded any more."""
        for file in self._files.values():
            file.close()
