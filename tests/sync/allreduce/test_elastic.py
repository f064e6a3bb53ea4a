"""The adaptive timeout, after which silent peers are reported."""

from __future__ import annotations

import pytest

from testbed.sync.allreduce.elastic import LEAST_S, NEEDED, REMEMBERED, SLACK, AdaptiveTimeout

pytestmark = pytest.mark.pure


def timeout_after(*took: float) -> AdaptiveTimeout:
    made = AdaptiveTimeout(100.0)
    for seconds in took:
        made.note(seconds)
    return made


def test_it_follows_the_longest_of_the_last_rounds() -> None:
    assert timeout_after(*[1.0] * (NEEDED - 1)).seconds == 100.0
    assert timeout_after(1.0, 2.0, 1.0).seconds == SLACK * 2
    assert timeout_after(50.0, *[1.0] * REMEMBERED).seconds == SLACK
    assert timeout_after(*[0.001] * NEEDED).seconds == LEAST_S
    assert timeout_after(*[50.0] * NEEDED).seconds == 100.0
