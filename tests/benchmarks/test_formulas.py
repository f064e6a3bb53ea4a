"""The rules that the benchmark of formulas is asked for."""

from __future__ import annotations

import sys

import pytest

from benchmarks.formulas import main

pytestmark = pytest.mark.pure


def test_a_rule_that_does_not_exist_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["formulas", "--rules", "sparseloco | teleport"])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
