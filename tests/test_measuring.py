"""Measurements are repeated until an interval decides."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import measuring
from tests.measuring import interval, judge


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measuring, "RESULTS", tmp_path / "physics.jsonl")
    return tmp_path / "physics.jsonl"


def drawn(values: Sequence[float]) -> Callable[[], float]:
    return iter(values).__next__


@pytest.mark.pure
def test_an_interval_is_by_order_alone_and_needs_seven_samples() -> None:
    assert interval(range(6)) == (-math.inf, math.inf)
    assert interval([5, 1, 2, 9, 3, 4, 8]) == (1, 9)
    assert interval(range(11)) == (1, 9)
    assert interval(range(25)) == (6, 18)


@pytest.mark.pure
def test_an_interval_holds_the_median_as_often_as_it_says() -> None:
    chance = random.Random(1)
    held = 0
    for _ in range(2000):
        low, high = interval([chance.expovariate(1.0) for _ in range(15)])
        held += low <= math.log(2) <= high
    assert held / 2000 >= measuring.CONFIDENCE - 0.01


@pytest.mark.local
def test_a_judgement_ends_with_the_sample_that_decides_and_is_recorded(results: Path) -> None:
    samples = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.0]
    assert judge(drawn(samples), 0.8, 1.2, "s") == 1.0
    (line,) = map(json.loads, results.read_text().splitlines())
    assert line["samples"] == samples and line["passed"] and line["unit"] == "s"
    assert line["test"].endswith("test_a_judgement_ends_with_the_sample_that_decides_and_is_recorded")


@pytest.mark.local
def test_one_sample_that_is_off_asks_for_more_and_does_not_decide(results: Path) -> None:
    judge(drawn([9.0] + [1.0] * 10), 0.8, 1.2, "s")
    assert len(json.loads(results.read_text())["samples"]) == 11


@pytest.mark.local
@pytest.mark.parametrize(
    ("samples", "count"),
    [pytest.param([2.0] * 7, 7, id="outside"), pytest.param([0.5, 1.5] * 10, 20, id="undecided")],
)
def test_a_median_that_is_not_within_its_bounds_fails_with_the_samples(
    results: Path, samples: list[float], count: int
) -> None:
    with pytest.raises(AssertionError, match=r"0\.8 and 1\.2"):
        judge(drawn(samples), 0.8, 1.2, "s", most=20)
    line = json.loads(results.read_text())
    assert len(line["samples"]) == count and not line["passed"]
