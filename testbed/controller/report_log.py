"""What members report, as they said it, in the run's directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from testbed.controller.clocks import SYSTEM, Clocks
from testbed.controller.contradiction import Contradiction
from testbed.protocol import Arrived, ControlMessage, Report
from testbed.telemetry.store import Records

#: What each member may have on record: so much for each round that is to come, and at least so much. A report among 8
#: peers with 25 trains of each takes 12 KB, and one without trains 1 KB; a run without end ends at the last of these.
ROUND_BYTES, LEAST_BYTES, MOST_BYTES = 64 * 1024, 64 * 1024**2, 4 * 1024**3


class ReportLog:
    """Writes `rounds.jsonl`, members' reports of rounds, and `arrivals.jsonl`, what came in during long ones; of a run
    of so many `rounds`."""

    def __init__(self, out: Path, rounds: int, clocks: Clocks = SYSTEM) -> None:
        self._clocks = clocks
        self._files = {Report: Records(out / "rounds.jsonl"), Arrived: Records(out / "arrivals.jsonl")}
        self._most_bytes = min(max(LEAST_BYTES, ROUND_BYTES * rounds), MOST_BYTES)
        self._written: Counter[str] = Counter()

    def add(self, message: ControlMessage) -> None:
        """Keep a message, if it is a report. Contradiction when its member has reported more than there can be."""
        if not isinstance(message, Report | Arrived):
            return
        if self._written[message.member] >= self._most_bytes:
            raise Contradiction(f"its reports fill the {self._most_bytes} bytes that the run's records have for each")
        record = {"at_s": self._clocks.unix(), **msgspec.to_builtins(message)}
        del record["kind"]
        self._written[message.member] += self._files[type(message)].append(record)

    def close(self) -> None:
        """Nothing is recorded any more."""
        for file in self._files.values():
            file.close()
