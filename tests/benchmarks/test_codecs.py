"""The comparison of codecs with fp32."""

from __future__ import annotations

import sys

import pytest

from benchmarks.codecs import BASELINE, Outcome, compare, main

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("plain", "coded", "inside"),
    [([2.0, 2.1], [2.0, 2.1], True), ([2.0, 2.1], [9.0, 9.0], False), ([2.0], [9.0], None)],
)
def test_a_codec_is_judged_by_an_interval_which_one_seed_lacks(
    plain: list[float], coded: list[float], inside: bool | None
) -> None:
    outcomes = [
        Outcome(codec, seed, loss, 100, True)
        for codec, losses in ((BASELINE, plain), ("int8", coded))
        for seed, loss in enumerate(losses, 1)
    ]
    assert compare(outcomes, "int8")["inside"] is inside


def test_a_codec_that_does_not_exist_is_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["codecs", "--codecs", "int8,int3"])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
