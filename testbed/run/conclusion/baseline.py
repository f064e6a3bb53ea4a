"""The comparison of a run with an earlier one, for continuous integration: whether it is trusted, and no slower."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.errors import BAD_INPUT
from testbed.run.conclusion.summary_fields import check_summary
from testbed.trace.text import MOST_BYTES, text_of

Summary = Mapping[str, Any]


class NoSummary(ValueError):
    """The file is not the summary of a finished run; the text says why and what to give instead."""

    exit_code = BAD_INPUT


def read_summary(file: Path) -> Summary:
    """Return the summary in a file or in a run's directory.

    Raises:
        NoSummary: No summary has figures.
    """
    file = file / "summary.json" if file.is_dir() else file
    remedy = "write instead: the summary.json of a finished run, or its directory"
    try:
        summary: Summary = json.loads(text_of(file, MOST_BYTES))
        check_summary(summary)
        round_seconds(summary)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NoSummary(f"{file}: not a run's summary: {error}\n    {remedy}") from None
    return summary


def round_seconds(summary: Summary) -> float | None:
    """Return the median length of a round in seconds, or None for a failed run or one whose command trained."""
    seconds = summary["sync"]["seconds_per_round"]["p50"]
    return None if seconds is None else float(seconds)


def shortfalls(summary: Summary, baseline: Summary | None, tolerance: float) -> list[str]:
    """Return why a run does not pass; empty if it does. Without a baseline, its verdict alone is judged.

    `tolerance` is the fraction by which the median round may be longer than the baseline's.
    """
    verdict = summary["verdict"]
    found = [f"{verdict}: {reason}" for reason in summary["reasons"]] if verdict != "trusted" else []
    if baseline is None:
        return found
    now, before = round_seconds(summary), round_seconds(baseline)
    if before is None:
        return [*found, "the baseline has no rounds to compare with"]
    if now is None:
        return [*found, "the run has no rounds to compare with the baseline's"]
    if now > before * (1 + tolerance):
        share = f"{now / before - 1:.0%} " if before else ""  # of 0 s there is no share
        found.append(
            f"slower: a round took {now:.3g} s at the median, {share}more than the baseline's "
            f"{before:.3g} s (tolerance {tolerance:.0%})"
        )
    return found
