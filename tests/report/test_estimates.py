from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.report.estimates import estimate_errors
from testbed.report.record import RunRecord
from tests.report.runs import ZERO_S, build_run

pytestmark = pytest.mark.pure


def test_estimates_are_held_against_what_was_in_force_and_old_ones_are_not(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    link, at, rate = "london->madrid", 10.0, 40e6  # one that stays
    decisions = [
        {"at_s": ZERO_S + at, "estimates": {link: {"rate_bps": 1.1 * rate, "age_s": 1.0}}},
        {"at_s": ZERO_S + at, "estimates": {link: {"rate_bps": 9.9 * rate, "age_s": 99.0}}},
        {"at_s": ZERO_S + at, "estimates": {"nowhere->here": {"rate_bps": 1.0, "age_s": 1.0}}},
        {"at_s": ZERO_S + at},
    ]
    (run / "decisions.jsonl").write_text("".join(json.dumps(decision) + "\n" for decision in decisions))
    found = estimate_errors(RunRecord.read(run))
    assert found.keys() == {link}
    assert found[link].off == pytest.approx((0.1,))
    assert found[link].held == (), "none came with an interval"
