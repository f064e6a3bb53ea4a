"""Reasons for `suspect` that come from the hosts."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.scaleout.split.probes import ClockEstimate, ClockSample
from testbed.scaleout.split.verdict import HostSeen, PathSeen, clock_bound_s, reasons

pytestmark = pytest.mark.pure

PAIR = frozenset(("north", "south"))
FLOOR_S = 2e-3


def samples(round_trip_s: float, seconds: float = 20.0, begin_s: float = 0.0) -> list[ClockSample]:
    sent = [begin_s + number / 20 for number in range(int(seconds * 20))]
    return [ClockSample(at, at + round_trip_s / 2, at + round_trip_s / 2, at + round_trip_s) for at in sent]


def way(*parts: list[ClockSample], lost: int = 0) -> PathSeen:
    seen = [one for part in parts for one in part]
    return PathSeen(seen, len(seen) + lost, lost, FLOOR_S)


def clock(**more: Any) -> ClockEstimate:
    values: dict[str, Any] = {
        "at_s": 20.0,
        "offset_s": 1e4,
        "offset_bound_s": 2e-3,
        "wall_offset_s": 1e-4,
        "bound_s": 2e-3,
        "drift": 1e-6,
    }
    return ClockEstimate(**{**values, "drift_error": 1e-6, "span_s": 20.0, **more})


def host(**more: Any) -> HostSeen:
    return HostSeen(**{"cpu": [0.5] * 20, "late_s": [0.001] * 20, "clock": clock(), **more})


def test_a_network_that_stayed_as_it_was_is_no_reason() -> None:
    assert reasons({PAIR: way(samples(2 * FLOOR_S))}, {"north": host(), "south": host()}) == []


def test_a_tenth_of_the_time_may_be_slower_and_more_may_not() -> None:
    slower = 2 * FLOOR_S + 40e-3
    some = way(samples(2 * FLOOR_S, 38.0), samples(slower, 2.0, 38.0))
    more = way(samples(2 * FLOOR_S, 20.0), samples(slower, 10.0, 20.0))
    assert reasons({PAIR: some}, {}) == []
    (reason,) = reasons({PAIR: more}, {})
    assert all(token in reason for token in ("north", "south", "44.0 ms", "4.0 ms", "33%"))


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (host(clock=clock(wall_offset_s=0.05)), "+50 ms"),
        (host(clock=clock(drift=200e-6)), "+200 ppm"),
        (host(ran_ahead_s=-0.012), "-12.0 ms"),
        (host(clock=None), "clock"),
        (host(cpu=[0.5] * 10 + [1.0] * 10), "50%"),
        (host(late_s=[0.0] * 15 + [0.4] * 5), "processor"),
    ],
)
def test_each_has_its_reason_with_the_host_s_name(seen: HostSeen, reason: str) -> None:
    (said,) = reasons({}, {"south": seen})
    assert "south" in said and reason in said


@pytest.mark.parametrize(
    "seen",
    [
        host(clock=clock(drift=200e-6, drift_error=50e-6)),  # it may be 50 as well
        host(clock=clock(drift=None)),  # seen for too short a time
        host(cpu=[1.0, *[0.5] * 19]),
    ],
)
def test_what_cannot_be_told_from_what_is_tolerated_is_no_reason(seen: HostSeen) -> None:
    assert reasons({}, {"south": seen}) == []


def test_probes_that_are_lost_are_a_reason_and_none_at_all_another() -> None:
    assert "4.8%" in reasons({PAIR: way(samples(2 * FLOOR_S), lost=20)}, {})[0]
    assert "%" not in reasons({PAIR: way(lost=100)}, {})[0]


def test_the_bound_is_of_the_two_hosts_that_are_known_worst() -> None:
    hosts = {
        "a": host(clock=clock(bound_s=1e-3)),
        "b": host(clock=clock(bound_s=3e-3), ran_ahead_s=1e-3),
        "c": host(clock=clock(bound_s=2e-3)),
    }
    assert clock_bound_s(hosts) == pytest.approx(6e-3)
