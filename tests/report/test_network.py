"""The network as a map: labels do not cover one another."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from testbed.report.figures.network import Labels, draw_network
from testbed.report.record import RunRecord
from tests.report.runs import PAIRS, build_run

pytestmark = pytest.mark.pure


def test_labels_of_links_hide_neither_sites_nor_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Labels] = []
    begin = Labels.__init__

    def noted(self: Labels, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Labels, "__init__", noted)
    assert draw_network(RunRecord.read(build_run(tmp_path / "run"))) is not None
    assert len(made) == 4, "a panel for each plan"
    for labels in made:
        placed = labels.taken[-len(PAIRS) :]
        sites = labels.taken[: -len(PAIRS)]
        assert not any(one.shared(site) > 0.1 * one.shared(one) for one in placed for site in sites)
        assert not any(one.shared(other) > 0.1 * one.shared(one) for one, other in combinations(placed, 2))
