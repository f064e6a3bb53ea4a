"""Where a member's time of a round went."""

from __future__ import annotations

from collections.abc import Mapping


def spent(seconds: float, step_s: float, waited: Mapping[str, float]) -> dict[str, float]:
    """Of a round of so many seconds: the step before it up to its declared time, waiting for the last of its peers, and
    the rest."""
    whole = max(seconds, 0.0)
    wait = min(max(waited.values(), default=0.0), whole)
    return {"compute_s": step_s, "wait_s": wait, "send_s": whole - wait}
