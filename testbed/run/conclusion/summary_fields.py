"""The fields of `summary.json` that reports, pages and comparisons read, with their types.

A summary of an earlier version, or of a run that did not finish, lacks some; any summary may have others, too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from testbed.schema import convert_to


class DurationFields(msgspec.Struct):
    """The percentiles of the rounds' durations, in seconds."""

    p50: float | None = None
    p95: float | None = None


class TrainingFields(msgspec.Struct):
    """The section `training`."""

    rounds: int | None = None
    final_loss: float | None = None
    final_accuracy: float | None = None
    wall_seconds: float | None = None


class SyncFields(msgspec.Struct):
    """The section `sync`."""

    policy: str | None = None
    strategy: str | None = None
    seconds_per_round: DurationFields | None = None
    wan_bytes: float | None = None
    lower_bound_seconds: float | None = None
    ratio_to_lower_bound: float | None = None
    bound_seconds: float | None = None
    ratio_to_bound: float | None = None


class SwapFields(msgspec.Struct):
    """A swap of the plan or the network."""

    kind: str
    epoch: int | None = None
    target: str | None = None
    requested_s: float | None = None
    active_s: float | None = None
    pause_ms: float | None = None
    lost_updates: int | None = None
    duplicated_updates: int | None = None
    changed: list[str] = []
    removed: list[str] = []


class EventFields(msgspec.Struct):
    """An event of the experiment's file, or a change by hand."""

    kind: str
    target: str
    at_s: float


class SummaryFields(msgspec.Struct):
    """The whole summary."""

    verdict: str
    reasons: list[str]
    notes: list[str] = []
    not_judged: list[str] = []
    training: TrainingFields | None = None
    sync: SyncFields | None = None
    swaps: list[SwapFields] = []
    events: list[EventFields] = []
    links: dict[str, dict[str, float | None]] = {}


def check_summary(value: Any) -> None:
    """Raise ProtocolError, a ValueError, if a value of JSON is not a summary; the text names the field."""
    convert_to(SummaryFields, value)
