"""The members' reports, unchanged, in the run's directory."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import msgspec

from testbed.controller.model.clocks import SYSTEM, Clocks
from testbed.protocol import Arrived, ControlMessage, Report
from testbed.telemetry.store import Records

#: The limit of each member's records: ROUND_BYTES for each of the run's rounds, within LEAST_BYTES and MOST_BYTES. A
#: report among 8 peers with 25 trains of each takes 12 KB, one without trains 1 KB, and one of a large model 200 KB.
#: The limit protects the disk. An honest member with a large model can reach it in a long run, and stays in the run.
ROUND_BYTES, LEAST_BYTES, MOST_BYTES = 64 * 1024, 64 * 1024**2, 4 * 1024**3

log = logging.getLogger(__name__)


class ReportLog:
    """Writes `rounds.jsonl`, the reports of rounds, and `arrivals.jsonl`, the trains that arrived during long rounds.

    After half of a member's limit its trains are left out, and after the whole limit all its reports.
    """

    def __init__(self, out: Path, rounds: int, clocks: Clocks = SYSTEM) -> None:
        self._clocks = clocks
        self._files = {Report: Records(out / "rounds.jsonl"), Arrived: Records(out / "arrivals.jsonl")}
        self._most_bytes = min(max(LEAST_BYTES, ROUND_BYTES * rounds), MOST_BYTES)
        self._written: Counter[str] = Counter()

    def add(self, message: ControlMessage) -> None:
        """Record a message if it is a report, within its member's limit."""
        if not isinstance(message, Report | Arrived):
            return
        written = self._written[message.member]
        if written >= self._most_bytes:
            return
        record = {"at_s": self._clocks.unix(), **msgspec.to_builtins(message)}
        del record["kind"]
        if written >= self._most_bytes / 2:
            if isinstance(message, Arrived):
                return  # it has nothing but trains
            del record["arrivals"]
        written += self._files[type(message)].append(record)
        self._written[message.member] = written
        if written >= self._most_bytes:
            log.warning(
                "%s has reached the limit of %d bytes: its further reports are not recorded",
                message.member,
                self._most_bytes,
            )

    def close(self) -> None:
        """Close `rounds.jsonl` and `arrivals.jsonl`."""
        for file in self._files.values():
            file.close()
