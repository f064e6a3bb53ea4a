from __future__ import annotations

from math import inf

import pytest

from testbed.controller.knowledge.round_trips import MIN_RTT_WINDOW_S, SAMPLES, RoundTrips

pytestmark = pytest.mark.pure

EDGE = ("a", "b")
DECLARED_S = 0.1


def test_the_least_of_the_newest_counts_and_what_is_declared_where_none_was_seen() -> None:
    trips = RoundTrips()
    assert trips.least_s(EDGE, DECLARED_S) == DECLARED_S
    for number, rtt_s in enumerate([0.05, *[0.08] * (SAMPLES - 1)]):
        trips.add(EDGE, rtt_s, DECLARED_S, float(number))
    assert trips.least_s(EDGE, DECLARED_S) == 0.05
    trips.add(EDGE, 0.08, DECLARED_S, 20.0)
    assert trips.least_s(EDGE, DECLARED_S) == 0.08


def test_another_path_forgets_both_ways_and_is_no_shorter_than_declared_while_the_kernel_may_mean_the_old_one() -> None:
    trips = RoundTrips()
    for edge in (EDGE, EDGE[::-1]):
        trips.add(edge, 0.05, DECLARED_S, 0.0)
    assert trips.since_s(EDGE) == -inf
    trips.redeclare(EDGE, 10.0)
    assert [trips.least_s(edge, 0.2) for edge in (EDGE, EDGE[::-1])] == [0.2, 0.2]
    assert trips.since_s(EDGE[::-1]) == 10.0
    trips.add(EDGE, 0.05, 0.2, 10.0 + MIN_RTT_WINDOW_S)
    assert trips.least_s(EDGE, 0.2) == 0.2
    trips.add(EDGE, 0.05, 0.2, 10.1 + MIN_RTT_WINDOW_S)
    assert trips.least_s(EDGE, 0.2) == 0.05
