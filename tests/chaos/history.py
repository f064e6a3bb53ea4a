"""The records that a run left, for the checker. Only the reason of an early end is taken from the run's own summary.

What members put into rounds and got out of them is read from their own records (member.py).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.report.opening import ended_early
from testbed.report.record import RunRecord
from tests.chaos.case import Case
from tests.chaos.faults import Fault
from tests.chaos.member import RECORD

Values = NDArray[np.float32]


@dataclass(frozen=True)
class Contribution:
    """A member's part of a round's sum."""

    weight: float
    values: Values


@dataclass(frozen=True)
class Result:
    """A member's result of a round. `slices` are (start, stop, members, the sum of their weights)."""

    whole: bool
    slices: tuple[tuple[int, int, tuple[str, ...], float], ...]
    values: Values


@dataclass
class Injection:
    """A fault whose moment came, in Unix time."""

    fault: Fault
    began_s: float
    ended_s: float = 0.0
    #: Why the fault could not be injected.
    missed: str = ""
    #: What went wrong in anything that the fault itself started.
    wrong: str = ""


@dataclass(frozen=True)
class Execution:
    """How a case's process went, as the nemesis saw it."""

    #: None if the run hung, and was killed.
    code: int | None
    output: str
    directory: Path
    ended_s: float
    injections: tuple[Injection, ...]
    #: Things of the run that were still on the machine after its end.
    left: tuple[str, ...]
    #: Other people's things that changed.
    touched: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """The records of one execution. Contributions and results are keyed by (round, member)."""

    case: Case
    execution: Execution
    summary: Mapping[str, Any]
    reasons: tuple[str, ...]
    logs: Mapping[str, str]
    contributions: Mapping[tuple[int, str], list[Contribution]] = field(default_factory=dict)
    results: Mapping[tuple[int, str], list[Result]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """True if the run's summary says that it completed its rounds."""
        return (self.summary.get("training") or {}).get("rounds") is not None

    @property
    def injected(self) -> list[Fault]:
        """The faults that were injected."""
        return [injection.fault for injection in self.execution.injections if not injection.missed]

    @classmethod
    def read(cls, case: Case, execution: Execution) -> History:
        """Read the records of a case's execution."""
        directory = execution.directory
        logs = {path.name: path.read_text(errors="replace") for path in sorted(directory.glob("logs/*"))}
        contributions: dict[tuple[int, str], list[Contribution]] = defaultdict(list)
        results: dict[tuple[int, str], list[Result]] = defaultdict(list)
        for record in (record for log in logs.values() for record in _records(log)):
            values = np.frombuffer(zlib.decompress(base64.b64decode(record["values"])), np.float32)
            if (member := record.get("gives")) is not None:
                contributions[record["round"], member].append(Contribution(record["weight"], values))
            else:
                slices = tuple((start, stop, tuple(names), weight) for start, stop, names, weight in record["slices"])
                results[record["round"], record["gets"]].append(Result(record["whole"], slices, values))
        summary: Mapping[str, Any] = {}
        reasons: tuple[str, ...] = ()
        if (directory / "manifest.json").exists():
            run = RunRecord.read(directory)
            summary, reasons = run.summary, () if run.finished else ended_early(run)
        return cls(case, execution, summary, reasons, logs, contributions, results)


def _records(log: str) -> Iterator[dict[str, Any]]:
    for line in log.splitlines():
        if line.startswith(RECORD):
            with suppress(ValueError):  # cut off
                yield json.loads(line.removeprefix(RECORD))


def first_round_after(execution: Execution, moment_s: float) -> float | None:
    """Return when a member completed the first round that began after a moment, in Unix time; None without one."""
    ends = []
    with suppress(OSError):
        for line in (execution.directory / "rounds.jsonl").read_text().splitlines():
            with suppress(ValueError, KeyError):
                report = json.loads(line)
                if report["started_s"] >= moment_s:
                    ends.append(float(report["finished_s"]))
    return min(ends, default=None)
