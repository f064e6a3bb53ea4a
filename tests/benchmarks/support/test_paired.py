"""Paired ratios and their intervals."""

from __future__ import annotations

import pytest

from benchmarks.support.paired import ratio

pytestmark = pytest.mark.pure


def test_the_ratio_of_what_both_have() -> None:
    found = ratio({1: 4.0, 2: 9.0, 3: 5.0}, {1: 2.0, 2: 3.0, 4: 1.0})
    assert found is not None
    assert (found.pairs, found.value) == (2, pytest.approx(6**0.5))
    assert found.low < found.value < found.high


def test_networks_that_differ_do_not_widen_the_interval() -> None:
    found = ratio({seed: 3.0 * seed for seed in range(1, 6)}, {seed: 1.5 * seed for seed in range(1, 6)})
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_the_interval_is_student_s() -> None:
    """Logarithms −1 and 1: mean 0, standard error 1, and 12.706 of those either way with one degree of freedom."""
    e = 2.718281828459045
    found = ratio({1: 1 / e, 2: e}, {1: 1.0, 2: 1.0})
    assert found is not None
    assert found.high == pytest.approx(e**12.7062, rel=1e-3)
    assert found.low == pytest.approx(1 / found.high)


def test_one_pair_says_nothing_of_others() -> None:
    found = ratio({1: 3.0}, {1: 2.0})
    assert found is not None
    assert (str(found), found.low, found.high) == ("1.50", 0.0, float("inf"))
    assert ratio({1: 3.0}, {2: 2.0}) is None
