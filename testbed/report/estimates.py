"""What the controller held links to carry, against what the emulator let them carry."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.report.record import RunRecord, State
from testbed.telemetry.estimate import SILENCE_S


def estimate_errors(record: RunRecord) -> dict[str, list[float]]:
    """Link → by what part the estimate was off each time that a plan was considered and the link was known."""
    errors: dict[str, list[float]] = {}
    for decision in record.decisions:
        for link, estimate in (decision.get("estimates") or {}).items():
            rate_bps = _in_force(record.states, link, decision["at_s"])
            if rate_bps and estimate["age_s"] <= SILENCE_S:
                errors.setdefault(link, []).append(estimate["rate_bps"] / rate_bps - 1)
    return errors


def _in_force(states: Mapping[str, tuple[State, ...]], link: str, at_s: float) -> float | None:
    """Bit/s of a link at a time; None before it was there."""
    before = [state for state in states.get(link, ()) if state.at_s <= at_s]
    return before[-1].rate_bps if before and before[-1].passes else None
