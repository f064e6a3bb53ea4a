"""The claims of the benchmark of what the controller knows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import awareness
from benchmarks.awareness import WITHIN, figures_of, unknown_s
from testbed.telemetry.estimate import SILENCE_S
from tests.planning.networks import sites, view_of

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


def test_a_link_is_unknown_before_its_first_estimate_and_after_its_last(tmp_path: Path) -> None:
    (tmp_path / "view.json").write_text(json.dumps(view_of(sites(("a", "b", 10)), {}).to_json()))

    def look(at_s: float, age_s: float) -> dict[str, Any]:
        return {"at_s": at_s, "view": "view.json", "estimates": {"a->b": {"age_s": age_s}}}

    run: Any = SimpleNamespace(
        path=tmp_path,
        states={"a->b": (), "b->a": (), "b->c": ()},
        decisions=[look(5.0, 1.0), look(40.0, 36.0), {"at_s": 99.0, "estimates": {}}],
    )
    never_known, no_longer_known = 40.0, 40.0 - 4.0 - SILENCE_S
    assert sorted(unknown_s(run)) == [4.0, no_longer_known, never_known], "no route leads over b->c"
