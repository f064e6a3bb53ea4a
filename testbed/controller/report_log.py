"""What members report, as they said it, in the run's directory."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import msgspec

from testbed.controller.model.clocks import SYSTEM, Clocks
from testbed.protocol import Arrived, ControlMessage, Report
from testbed.telemetry.store import Records

#: What each member may have on record: so much for each round that is to come, and at least so much. A report among 8
#: peers with 25 trains of each takes 12 KB, and one without trains 1 KB; a large model's takes 200 KB. It protects the
#: disk: whoever reports honestly of large models for long comes to it too, and is not lost for that.
ROUND_BYTES, LEAST_BYTES, MOST_BYTES = 64 * 1024, 64 * 1024**2, 4 * 1024**3

log = logging.getLogger(__name__)


class ReportLog:
    """Writes `rounds.jsonl`, members' reports of rounds, and `arrivals.jsonl`, what came in during long ones; of a run
    of so many `rounds`.

    Once half of what a member may have on record is written, its trains are left out, and at the end all of it.
    """

    def __init__(self, out: Path, rounds: int, clocks: Clocks = SYSTEM) -> None:
        self._clocks = clocks
        self._files = {Report: Records(out / "rounds.jsonl"), Arrived: Records(out / "arrivals.jsonl")}
        self._most_bytes = min(max(LEAST_BYTES, ROUND_BYTES * rounds), MOST_BYTES)
        self._written: Counter[str] = Counter()

    def add(self, message: ControlMessage) -> None:
        """Keep a message, if it is a report, as far as its member may still have it on record."""
        if not isinstance(message, Report | Arrived):
            return
        written = self._written[message.member]
        if written >= self._most_bytes:
            return
        record = {"at_s": self._clocks.unix(), **msgspec.to_builtins(message)}
        del record["kind"]
        if written >= self._most_bytes / 2:
            if isinstance(message, Arrived):
                return  # trains are all that it says
            del record["arrivals"]
        written += self._files[type(message)].append(record)
        self._written[message.member] = written
        if written >= self._most_bytes:
            log.warning("%s's reports fill the %d bytes that each may: no more", message.member, self._most_bytes)

    def close(self) -> None:
        """Nothing is recorded any more."""
        for file in self._files.values():
            file.close()
