"""What the hybrid's steps count."""

from __future__ import annotations

import pytest

from testbed.schemes.hybrid.algorithm import work

pytestmark = pytest.mark.pure


def test_steps_count_by_the_members_mean_work() -> None:
    assert work(2, (8, 2), prox=0.0) == pytest.approx(2 / 5)
    assert work(4, (8, 2), prox=0.0) == pytest.approx(4 / 5)
    assert work(3, (), prox=0.0) == 1
