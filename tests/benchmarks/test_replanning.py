"""The benchmark of re-planning: simulated cells, and what its tables claim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import replanning
from benchmarks.support.wans import Wan
from benchmarks.support.window import Cell, simulate

pytestmark = pytest.mark.local


def test_a_simulated_cell_has_the_controllers_own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record, _ = simulate(Cell(Wan("constant", 4, 1), "follow", "auto"), window_s=4.0)
    assert record.manifest["simulated"] and record.end_s == 4.0
    assert record.rounds and record.decisions
    assert record.estimates[-1]["links"], "the members' trains are the estimator's samples"


def test_cells_of_a_simulation_are_not_taken_for_emulated_ones(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"auto/drop-5/1/hold": {"rounds": 1, "simulated": True}}))
    with pytest.raises(SystemExit) as refused:
        replanning.main(["--networks", "drop-5", "--seeds", "1", "--show", "--kept", str(kept)])
    assert refused.value.code == 2
