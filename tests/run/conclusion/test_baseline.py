"""The comparison of a run with a baseline, by its verdict and its rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from testbed.cli import BAD_INPUT, FAILED, app
from testbed.run.conclusion.baseline import shortfalls

pytestmark = pytest.mark.pure


BAD_SUMMARIES: list[dict[str, Any]] = [
    {"verdict": 3, "reasons": []},
    {"verdict": "trusted", "reasons": []},
    {"verdict": "trusted", "reasons": [], "sync": {"seconds_per_round": [1.0]}},
    {"verdict": "trusted", "reasons": [], "sync": {"seconds_per_round": {"p50": "fast"}}},
]


def summary(seconds: float | None, *reasons: str) -> dict[str, Any]:
    verdict = "suspect" if reasons else "trusted"
    return {"verdict": verdict, "reasons": list(reasons), "sync": {"seconds_per_round": {"p50": seconds}}}


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_a_run_is_slower_where_its_rounds_are_longer_by_more_than_the_tolerance(
    now: float, before: float, tolerance: float
) -> None:
    found = shortfalls(summary(now), summary(before), tolerance)
    assert bool(found) is (now > before * (1 + tolerance))


def test_the_verdict_counts_without_a_baseline_too() -> None:
    assert shortfalls(summary(0.5), None, 0.1) == []
    assert shortfalls(summary(0.5, "starved", "late"), None, 0.1) == ["suspect: starved", "suspect: late"]
    assert shortfalls({**summary(0.5, "no TCP"), "verdict": "simulated"}, None, 0.1) == ["simulated: no TCP"]


def test_a_run_without_rounds_does_not_pass_beside_one_that_has_some() -> None:
    assert shortfalls(summary(None, "it broke"), summary(0.5), 0.1)[-1].startswith("the run has no rounds")
    assert shortfalls(summary(0.5), summary(None), 0.1) == ["the baseline has no rounds to compare with"]


def checked(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, words)])


def test_the_command_says_which_and_its_exit_code_too(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary(0.56)))
    before = tmp_path / "before.json"
    before.write_text(json.dumps(summary(0.5)))
    passed = checked(tmp_path, "--baseline", before, "--tolerance", "20%")
    assert (passed.exit_code, passed.stdout) == (
        0,
        "passed: trusted; a round took 0.56 s at the median, the baseline 0.5 s\n",
    )
    slower = checked(tmp_path, "--baseline", before)
    assert slower.exit_code == FAILED
    assert all(token in slower.stderr for token in ("12%", "0.5 s", "10%"))


def test_a_median_of_0_s_is_a_baseline_too(tmp_path: Path) -> None:
    assert len(shortfalls(summary(0.5), summary(0.0), 0.1)) == 1
    (tmp_path / "summary.json").write_text(json.dumps(summary(0.0)))
    passed = checked(tmp_path, "--baseline", tmp_path)
    assert passed.exit_code == 0
    assert "baseline 0 s" in passed.stdout


@pytest.mark.parametrize("text", ["", "[]", "{}", *map(json.dumps, BAD_SUMMARIES)])
def test_what_is_no_summary_is_bad_input(text: str, tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    assert "summary.json" in checked(tmp_path).stderr
    file.write_text(text)
    done = checked(file)
    assert done.exit_code == BAD_INPUT
    assert f"{file}: " in done.stderr
