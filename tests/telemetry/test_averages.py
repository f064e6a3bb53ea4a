"""Means, medians and percentiles, also of figures that are missing."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry.averages import mean_if_all, mean_of_known, means_if_all, median_of_known, percentile

pytestmark = pytest.mark.pure

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(VALUES)
def test_percentiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    found = [percentile(values, percent) or 0.0 for percent in (1, 25, 50, 95, 99)]
    assert found == sorted(found) or found == pytest.approx(sorted(found))
    assert min(values) - 1e-6 <= found[0]
    assert found[-1] <= max(values) + 1e-6
    assert found[2] == pytest.approx(statistics.median(values), abs=1e-6)


@given(VALUES, st.integers(1, 99))
def test_percentiles_are_those_of_numpy(values: list[float], percent: int) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)


def test_percentiles_of_little() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 95) == 3.0
    assert percentile([0.0, 10.0], 95) == pytest.approx(9.5)
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0


def test_missing_figures_do_not_count() -> None:
    assert mean_of_known([1.0, None, 4.0]) == 2.5
    assert median_of_known(value for value in (9.0, None, 1.0, 2.0)) == 2.0
    for missing in ([], [None, None]):
        assert mean_of_known(missing) is None
        assert median_of_known(missing) is None


def test_a_mean_over_all_lacks_where_one_figure_does() -> None:
    assert mean_if_all(value for value in (1.0, 4.0)) == 2.5
    assert mean_if_all([1.0, None]) is None and mean_if_all([]) is None
    assert means_if_all([{"loss": 1.0, "accuracy": 0.5}, {"loss": None}]) == {"loss": None, "accuracy": 0.5}


def test_figures_of_numpy_become_floats() -> None:
    assert type(percentile([np.float32(1.5)], 50)) is float
    assert type(percentile([np.float32(1.5), np.float32(2.5)], 50)) is float
