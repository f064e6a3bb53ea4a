"""What a run left, as the checker reads it: nothing of it is taken from what the run says of itself but its own words.

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
    """What a member put into a round."""

    weight: float
    values: Values


@dataclass(frozen=True)
class Result:
    """What a member got out of a round: `slices` are (start, stop, members, their weights' sum)."""

    whole: bool
    slices: tuple[tuple[int, int, tuple[str, ...], float], ...]
    values: Values


@dataclass
class Injection:
    """A fault whose moment came, in Unix time; `missed` says why it could not be injected, `wrong` what was not as it
    should be of what it began itself."""

    fault: Fault
    began_s: float
    ended_s: float = 0.0
    missed: str = ""
    wrong: str = ""


@dataclass(frozen=True)
class Execution:
    """How a case's process went, as the nemesis saw it. `code` is None where it had to be killed since it hung.

    `left` has what was still on the machine after its end, `touched` what of others is not as it was.
    """

    code: int | None
    output: str
    directory: Path
    ended_s: float
    injections: tuple[Injection, ...]
    left: tuple[str, ...]
    touched: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """Of one execution of a case. Contributions and results by (round, member)."""

    case: Case
    execution: Execution
    summary: Mapping[str, Any]
    reasons: tuple[str, ...]
    logs: Mapping[str, str]
    contributions: Mapping[tuple[int, str], list[Contribution]] = field(default_factory=dict)
    results: Mapping[tuple[int, str], list[Result]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the run says that it came to its end."""
        return (self.summary.get("training") or {}).get("rounds") is not None

    @property
    def injected(self) -> list[Fault]:
        """The faults that were."""
        return [injection.fault for injection in self.execution.injections if not injection.missed]

    @classmethod
    def read(cls, case: Case, execution: Execution) -> History:
        """The history of a case's execution."""
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
        summary, reasons = {}, ()
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
    """When the first round that began after a moment was over at a member, in Unix time; None where there is none."""
    ends = []
    with suppress(OSError):
        for line in (execution.directory / "rounds.jsonl").read_text().splitlines():
            with suppress(ValueError, KeyError):
                report = json.loads(line)
                if report["started_s"] >= moment_s:
                    ends.append(float(report["finished_s"]))
    return min(ends, default=None)
