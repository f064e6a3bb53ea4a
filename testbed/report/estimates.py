"""What the controller estimated links to carry, against what the emulator let them carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.report.record import RunRecord
from testbed.report.series import StepFunction, rate_in_force
from testbed.telemetry.estimate import SILENCE_S


@dataclass(frozen=True, slots=True)
class Errors:
    """Of a link's estimates up to SILENCE_S old, each time that they were written down: by what part each was off, and
    of those that came with an interval, whether the truth lay in it.

    The truth is the mean rate over the time of the samples behind the estimate. There is none while the link is down.
    """

    off: tuple[float, ...]
    held: tuple[bool, ...]


def estimate_errors(record: RunRecord) -> dict[str, Errors]:
    """By link; those whose estimates can't be compared with anything are left out."""
    found: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for look in record.estimates:
        for link, estimate in look["links"].items():
            if link in record.states and estimate["age_s"] <= SILENCE_S:
                found.setdefault(link, []).append((look["at_s"] - estimate["age_s"], estimate))
    errors = {link: _errors(rate_in_force(record.states[link], record.end_s), its) for link, its in found.items()}
    return {link: its for link, its in errors.items() if its.off}


def _errors(rate: StepFunction, estimates: list[tuple[float, Mapping[str, Any]]]) -> Errors:
    stops = np.array([until_s for until_s, _ in estimates])
    starts = stops - np.array([estimate.get("over_s", 1.0) for _, estimate in estimates])
    true = [
        (estimate, float(true_bps))
        for (_, estimate), true_bps in zip(estimates, rate.means_within(starts, stops), strict=True)
        if true_bps > 0  # not down, and not NaN
    ]
    return Errors(
        tuple(estimate["rate_bps"] / true_bps - 1 for estimate, true_bps in true),
        tuple(e["low_bps"] <= true_bps <= e["high_bps"] for e, true_bps in true if "low_bps" in e),
    )
