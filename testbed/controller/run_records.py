"""The records of a run in progress: members' reports, written unchanged, and rounds and decisions, read for the API.

Reading waits for the disk, so the controller's event loop never reads these files.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from testbed.controller.client import ControllerError
from testbed.controller.model.clocks import SYSTEM, Clocks
from testbed.protocol import Arrived, ControlMessage, Report
from testbed.telemetry.round_span import time_spent
from testbed.telemetry.store import Records

#: The limit of each member's records: ROUND_BYTES for each of the run's rounds, within LEAST_BYTES and MOST_BYTES. A
#: report among 8 peers with 25 trains of each takes 12 KB, one without trains 1 KB, and one of a large model 200 KB.
#: The limit protects the disk. An honest member with a large model can reach it in a long run, and stays in the run.
ROUND_BYTES, LEAST_BYTES, MOST_BYTES = 64 * 1024, 64 * 1024**2, 4 * 1024**3

#: The unread bytes of `rounds.jsonl` beyond which only the newest are read: to parse 1 GiB would stop all other threads
#: for many seconds. A report has at most 16 MiB.
BEHIND_BYTES = 32 * 1024**2

log = logging.getLogger(__name__)


class ReportLog:
    """Writes `rounds.jsonl`, the reports of rounds, and `arrivals.jsonl`, the trains that arrived during rounds.

    After half of a member's limit its trains are left out, and after the whole limit all its reports.

    Args:
        out: The run's directory.
        rounds: The run's rounds.
        clocks: Tell the time of each record.
        most_bytes: The limit of each member; None derives it from `rounds`.
    """

    def __init__(self, out: Path, rounds: int, clocks: Clocks = SYSTEM, most_bytes: int | None = None) -> None:
        self._clocks = clocks
        self._files = {Report: Records(out / "rounds.jsonl"), Arrived: Records(out / "arrivals.jsonl")}
        self._most_bytes = most_bytes or min(max(LEAST_BYTES, ROUND_BYTES * rounds), MOST_BYTES)
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


class Controller(Protocol):
    """The part of a controller that RunRecords needs: its rounds."""

    def rounds(self, since: int) -> list[dict[str, Any]]:
        """Return the complete rounds from number `since` on. Raises ControllerError while the controller is busy."""


class NewLines:
    """The lines that were added to a file since the last iteration, as JSON values.

    A line that a crash cut short, which a restarted controller terminates, is left out.

    Args:
        file: The file, which may not exist yet.
        most_behind: The most bytes that one iteration reads: of more new bytes only the last ones. None sets no limit.
    """

    def __init__(self, file: Path, most_behind: int | None = None) -> None:
        self._file = file
        self._most_behind = most_behind
        self._read_to = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            if self._most_behind is not None and file.seek(0, os.SEEK_END) - self._read_to > self._most_behind:
                file.seek(-self._most_behind - 1, os.SEEK_END)  # the byte before, which may end a line
                self._read_to = file.tell() + len(file.readline())
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the line is still being written
                self._read_to += len(line)
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                yield record


class RunRecords:
    """The rounds and decisions of one run, each requested, or read from its file, once. Any thread may use it.

    Args:
        directory: The run's directory.
        controller: Knows the rounds; None if the run has no members of the sync library.
        newest: The number of newest rounds, and of newest decisions, to keep; None keeps all.
    """

    def __init__(self, directory: Path, controller: Controller | None, newest: int | None = None) -> None:
        self._keep = newest
        self._controller = controller
        self._decisions_file = directory / "decisions.jsonl"
        self._decided = NewLines(self._decisions_file)
        self._reported = NewLines(directory / "rounds.jsonl", BEHIND_BYTES)
        self._lock = threading.Lock()
        self._newest: int | None = None
        self._rounds: dict[str, dict[str, Any]] = {}
        self._decisions: dict[str, dict[str, Any]] = {}
        self._decision = 0  # the number of the newest decision
        self._spent: dict[str, dict[str, float]] = {}

    def until(self, newest: int | None) -> dict[str, dict[str, Any]]:
        """Return the summaries of the kept rounds, by number, up to the round `newest`.

        Args:
            newest: The number of the last completed round, or None before the first. If it is another one than at the
                last call, the rounds since are requested from the controller.
        """
        with self._lock:
            if self._controller is not None and newest != self._newest:
                self._newest = newest
                since = int(next(reversed(self._rounds), "0")) + 1
                with suppress(ControllerError):  # the controller is busy; the next round requests them again
                    self._rounds |= {str(done["round"]): done for done in self._controller.rounds(since)}
                    self._trim(self._rounds)
            return dict(self._rounds)

    def decisions(self) -> dict[str, dict[str, Any]]:
        """Return the kept decisions about plans, numbered from 1, without the estimates that they are based on."""
        with self._lock:
            for decision in self._decided:
                decision.pop("estimates", None)
                self._decision += 1
                self._decisions[str(self._decision)] = decision
                self._trim(self._decisions)
            return dict(self._decisions)

    def spent(self) -> dict[str, dict[str, float]]:
        """Return the seconds that each member computed, waited and sent in its last round: see `time_spent`."""
        with self._lock:
            gossips = not self._decisions_file.exists()  # a controller of rounds has it from its start on
            self._spent |= {report["member"]: spent_in(report, gossips) for report in self._reported}
            return dict(self._spent)

    def _trim(self, records: dict[str, dict[str, Any]]) -> None:
        while self._keep is not None and len(records) > self._keep:
            del records[next(iter(records))]


def keep_plans(plans: dict[int, dict[str, Any]], status: Mapping[str, Any]) -> None:
    """Add the swaps and the plan in force of a controller's status to `plans`, by epoch; the first plan has no swap.

    A changed entry is a new dict, so that a reader of the old one sees that it differs. The plan of an epoch is None
    where no status was taken while it was in force.
    """
    told = [(swap["epoch"], {"swap": swap}) for swap in status["swaps"]]
    if plan := status.get("plan"):
        told.append((plan["epoch"], {"plan": plan}))
    for epoch, known in told:
        before = plans.get(epoch, {"plan": None, "swap": None})
        if (after := before | known) != before:
            plans[epoch] = after


def spent_in(report: Mapping[str, Any], gossips: bool = False) -> dict[str, float]:
    """Return the seconds that a member spent computing, waiting and sending in a round, by its report.

    An iteration of a member that `gossips` contains its steps.
    """
    seconds = report["finished_s"] - report["started_s"]
    return time_spent(seconds, report["compute_s"] + report["paced_s"], report.get("waited", {}), gossips)
