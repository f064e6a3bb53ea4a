"""Rounds as the controller sees them: each member's report, and what follows when all have reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.planning import Pair
from testbed.protocol import PeerSample, Report


@dataclass(frozen=True, slots=True)
class Round:
    """A round that all members have reported. Times are Unix seconds."""

    number: int
    reports: Mapping[str, Report]

    @property
    def epoch(self) -> int:
        """The epoch of the plan it went by."""
        return max(report.epoch for report in self.reports.values())

    @property
    def entered_s(self) -> float:
        """When the last member entered it."""
        return max(report.started_s for report in self.reports.values())

    @property
    def finished_s(self) -> float:
        """When the last member finished it."""
        return max(report.finished_s for report in self.reports.values())

    @property
    def seconds(self) -> float:
        """The time of the round: from when the last member entered to when the last finished."""
        return self.finished_s - self.entered_s

    @property
    def lost(self) -> int:
        """Updates that a member's result did not hold, over all members."""
        return sum(report.lost for report in self.reports.values())

    @property
    def duplicated(self) -> int:
        """Updates that a member's result held twice, over all members."""
        return sum(report.duplicated for report in self.reports.values())

    def samples(self) -> dict[Pair, PeerSample]:
        """Each edge's transfer in this round, by (sender, receiver)."""
        return {(member, sample.peer): sample for member, report in self.reports.items() for sample in report.peers}

    def metrics(self) -> dict[str, float]:
        """The mean over members of each metric, over those that reported it."""
        values: dict[str, list[float]] = {}
        for report in self.reports.values():
            for name, value in report.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in values.items()}

    def to_json(self) -> dict[str, Any]:
        """The round in short, for those who watch."""
        return {
            "round": self.number,
            "epoch": self.epoch,
            "entered_s": self.entered_s,
            "finished_s": self.finished_s,
            "seconds": self.seconds,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "metrics": self.metrics(),
        }


class RoundBook:
    """Gathers reports into rounds."""

    def __init__(self, members: tuple[str, ...]) -> None:
        self._members = frozenset(members)
        self._open: dict[int, dict[str, Report]] = {}
        self.complete: list[Round] = []

    def add(self, report: Report) -> Round | None:
        """Take a report; the round, when it was the last one of it. ValueError when the member reported it before."""
        reports = self._open.setdefault(report.round, {})
        if report.member in reports or any(report.round == done.number for done in self.complete[-8:]):
            raise ValueError(f"{report.member} reported round {report.round} twice")
        reports[report.member] = report
        if reports.keys() != self._members:
            return None
        done = Round(report.round, self._open.pop(report.round))
        self.complete.append(done)
        return done

    @property
    def last(self) -> Round | None:
        """The newest complete round."""
        return self.complete[-1] if self.complete else None
