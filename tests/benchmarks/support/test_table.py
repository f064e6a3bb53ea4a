from __future__ import annotations

import json
from math import inf, nan

import pytest
from numpy import bool_, float64

from benchmarks.support.table import show

pytestmark = pytest.mark.pure


def test_numpy_s_numbers_and_truth_values_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    show([], {"within": bool_(True), "errors": [float64(0.5)]}, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["within"], found["errors"]) == (True, [0.5])


def test_an_interval_of_one_seed_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no Infinity, which jq and JavaScript refuse."""
    show([], {"ratio": {"value": 1.5, "high": inf}, "losses": (nan, 2.0)}, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"] == {"value": 1.5, "high": None} and found["losses"] == [None, 2.0]
