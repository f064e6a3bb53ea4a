"""The figure of the distance of members from their mean."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from testbed.report.figures.training import draw_drift, drift_of
from testbed.report.page import write_page
from testbed.report.record import RunRecord
from tests.report.runs import MEMBERS, build_run

pytestmark = pytest.mark.pure


def drifting(path: Path, fragments: int) -> RunRecord:
    """Return a run whose members report a merge in each round; later members are farther from the mean."""
    build_run(path, rounds=20)
    file = path / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        apart = 1.0 + MEMBERS.index(line["member"])
        line["drift"] = [
            {
                "fragment": fragment,
                "weight": 1.0,
                "apart": apart,
                "moved": 4.0,
                "sketch": [apart / 8] * 64,
                "loss_before": 2.0 if line["round"] % 2 else None,
                "loss_after": 1.5 if line["round"] % 2 else None,
            }
            for fragment in range(fragments)
        ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunRecord.read(path)


@pytest.mark.parametrize("fragments", [1, 3])
def test_the_page_names_the_member_that_stands_furthest(fragments: int, tmp_path: Path) -> None:
    record = drifting(tmp_path / "run", fragments)
    found = drift_of(record)
    assert len(found) == 20 * fragments
    assert found[0].groups["toronto"] == pytest.approx(1.5) and found[0].groups["washington"] == pytest.approx(3.0)
    drawing = draw_drift(record)
    assert drawing is not None
    assert re.search(r"tokyo .* 1\.9 .* -0\.5\b", drawing.alt)
    assert drawing.title in write_page(record).read_text()


def test_a_run_that_merged_nothing_has_none(tmp_path: Path) -> None:
    build_run(tmp_path / "run", rounds=20)
    assert draw_drift(RunRecord.read(tmp_path / "run")) is None
