from __future__ import annotations

import json

import pytest
from numpy import bool_, float64

from benchmarks.support.table import show

pytestmark = pytest.mark.pure


def test_numpy_s_numbers_and_truth_values_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    show([], {"within": bool_(True), "errors": [float64(0.5)]}, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["within"], found["errors"]) == (True, [0.5])
