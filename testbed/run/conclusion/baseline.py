"""A run held against an earlier one, for continuous integration: whether it is to be believed, and no slower. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.errors import BAD_INPUT

Summary = Mapping[str, Any]


class NoSummary(ValueError):
    """A file that is no summary of a run which came to its end; the text says so, and what to give instead."""

    exit_code = BAD_INPUT


def read_summary(file: Path) -> Summary:
    """The summary in a file, or in a run's directory. NoSummary where there is none with figures."""
    file = file / "summary.json" if file.is_dir() else file
    remedy = "write instead: the summary.json of a run that came to its end, or its directory"
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(summary, dict) or not isinstance(summary["verdict"], str) or "reasons" not in summary:
            raise ValueError("it has no verdict")
    except (OSError, ValueError, KeyError) as error:
        raise NoSummary(f"{file}: is no summary: {error}\n    {remedy}") from None
    return summary


def round_seconds(summary: Summary) -> float | None:
    """The median round; None where a run broke off, or a program trained that has no rounds."""
    seconds = summary["sync"]["seconds_per_round"]["p50"]
    return None if seconds is None else float(seconds)


def shortfalls(summary: Summary, baseline: Summary | None, tolerance: float) -> list[str]:
    """Why a run does not pass: its verdict's reasons, and rounds that at the median are longer than the baseline's by
    more than the part `tolerance`."""
    found = [f"suspect: {reason}" for reason in summary["reasons"]] if summary["verdict"] != "trusted" else []
    if baseline is None:
        return found
    now, before = round_seconds(summary), round_seconds(baseline)
    if before is None:
        return [*found, "the baseline has no rounds to compare with"]
    if now is None:
        return [*found, "the run has no rounds to compare with the baseline's"]
    if now > before * (1 + tolerance):
        found.append(
            f"slower: a round took {now:.3g} s at the median, {now / before - 1:.0%} more than the baseline's "
            f"{before:.3g} s (tolerance {tolerance:.0%})"
        )
    return found
