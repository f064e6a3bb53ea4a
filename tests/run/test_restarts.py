"""How soon a worker that dies is started anew, and how often."""

from __future__ import annotations

import pytest

from testbed.run.restarts import LONGEST_PAUSE_S, MOST_RESTARTS, STEADY_S, Restarts

pytestmark = pytest.mark.pure


def pause(restarts: Restarts, now: float) -> float:
    """Seconds from a death to the moment for another start, to the tenth."""
    restarts.died(now)
    return next(tenths / 10 for tenths in range(1000) if restarts.due(now + tenths / 10))


def test_pauses_double_up_to_the_longest_until_it_has_died_too_often() -> None:
    restarts, now, pauses = Restarts(), 100.0, []
    while True:
        restarts.died(now)
        if restarts.over:
            break
        pauses.append(pause(restarts, now))
        restarts.started(now := now + pauses[-1])
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert len(pauses) == MOST_RESTARTS
    assert not restarts.due(now + 1e6)


def test_a_death_that_is_seen_twice_is_one() -> None:
    restarts = Restarts()
    for now in (1.0, 2.0, 3.0):
        restarts.died(now)
    assert restarts.due(3.0)


def test_one_that_ran_for_long_is_started_at_once_again() -> None:
    restarts = Restarts()
    for now in (1.0, 2.0, 5.0):
        restarts.died(now)
        restarts.started(now)
    assert pause(restarts, 5.0 + STEADY_S) == 0.0
