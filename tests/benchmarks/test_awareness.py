"""The claims of the benchmark of what the controller knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import awareness
from benchmarks.awareness import WITHIN, figures_of

pytestmark = pytest.mark.pure


def record(off: float) -> Any:
    """Return the record of a run whose only estimate is off by a part, and whose links change once, at its end."""
    return SimpleNamespace(
        off=off,
        decisions=[],
        states={"a->b": [SimpleNamespace(at_s=2.0)]},
        end_s=3.0,
        spec={"controller": {"margin": 0.1}},
        summary={"swaps": [], "verdict": "trusted"},
    )


@pytest.mark.parametrize(
    ("dynamic", "static", "met"), [(WITHIN, WITHIN, True), (2 * WITHIN, 0.0, False), (0.0, 2 * WITHIN, False)]
)
def test_estimates_of_both_runs_are_held_to_the_claim(
    dynamic: float, static: float, met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awareness, "estimate_errors", lambda run: {"a->b": SimpleNamespace(off=[run.off])})
    assert all(figures_of(record(dynamic), record(static))["met"].values()) == met
