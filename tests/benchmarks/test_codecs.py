"""The comparison of codecs with fp32."""

from __future__ import annotations

import pytest

from benchmarks.codecs import BASELINE, Outcome, compare

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
