"""Connections under BBR, in the simulator: what one sends over a link whose rate changes, trip by trip."""

from __future__ import annotations

from math import ceil, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.plan import Plan
from testbed.planning.constraints import Constraints, Floats
from testbed.planning.events import CONNECTION, INITIAL_BYTES, Connections, opened
from testbed.planning.policies.star import star
from testbed.planning.simulate import PlanRounds

pytestmark = pytest.mark.pure

TRIP_S = 0.1
CHUNK = 8192
PAIR = ("b", "a")

#: BBR sends 1.25 times its estimate as it probes; an estimate lags by half a round trip and one.
PROBES, GROWS = 1.25, (0.625 + (0.625**2 + 4 * 0.625) ** 0.5) / 2

Rates = list[tuple[float, float]]


def sent(rates: Rates, size: int, connection: Connections) -> tuple[Floats, Floats]:
    """When chunks that b sends to a were sent, and their bytes; the link has each rate (byte/s) from its moment."""
    rounds = PlanRounds(Plan(0, ("a", "b"), (star(("a", "b"), "a"),), CHUNK), size)
    flow = rounds.pairs.index(PAIR)
    rows = np.zeros(len(rounds.pairs), CONNECTION)
    rows[flow] = connection[0]
    (_, network), *later = (
        (at_s, rounds.network(Constraints({"there": 8 * rate, "back": 8e12}, drawn(rounds)), lambda *_: TRIP_S / 2))
        for at_s, rate in rates
    )
    found = rounds.run(network, {}, later=later, connections=rows)
    connection[0] = rows[flow]
    items = rounds.items
    chunks = slice(int(items.first[flow]), int(items.first[flow + 1]))
    order = np.argsort(found.ended_s[0][chunks])
    return found.ended_s[0][chunks][order], items.size[chunks][order]


def drawn(rounds: PlanRounds) -> dict[tuple[str, str], tuple[str, ...]]:
    return {pair: ("there" if pair == PAIR else "back",) for pair in rounds.pairs}


def carried(rates: Rates, until_s: float) -> float:
    """The bytes that the link lets through by then."""
    ends = [at_s for at_s, _ in rates[1:]] + [until_s]
    return sum(max(min(end, until_s) - at_s, 0.0) * rate for (at_s, rate), end in zip(rates, ends, strict=True))


def knowing(rate: float) -> Connections:
    """A connection that has sent at a rate for long, and is about to probe."""
    row = opened(TRIP_S)
    row["estimate"], row["samples"], row["last"], row["startup"] = rate, rate, rate, 0
    return row


def trips_until(rate: float, ended_s: Floats, sizes: Floats, from_s: float) -> float:
    """Round trips from a moment on until a chunk is sent at a rate."""
    speeds = sizes[1:] / np.diff(ended_s)
    fast = ended_s[1:][(speeds >= rate * 0.99) & (ended_s[1:] > from_s)]
    return (float(fast[0]) - from_s) / TRIP_S


changes = st.lists(st.tuples(st.floats(0.05, 3.0), st.floats(2e4, 4e6)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(changes=changes, size=st.integers(20_000, 3_000_000))
def test_no_more_is_sent_than_the_link_carries_and_all_of_it(changes: list[tuple[float, float]], size: int) -> None:
    moments = np.cumsum([0.0, *(lasts for lasts, _ in changes[:-1])]).tolist()
    rates = list(zip(moments, (rate for _, rate in changes), strict=True))
    ended_s, sizes = sent(rates, size, opened(TRIP_S))
    assert np.isfinite(ended_s).all()
    for at_s, total in zip(ended_s.tolist(), np.cumsum(sizes).tolist(), strict=True):
        assert total <= carried(rates, at_s) * (1 + 1e-6)


@settings(max_examples=30, deadline=None)
@given(times=st.floats(1.5, 10.0))
def test_a_rate_that_rises_is_reached_by_a_quarter_each_round_trip_or_two(times: float) -> None:
    low, high = 2e5, 2e5 * times
    ended_s, sizes = sent([(0.0, low), (5.0, high)], int(low * 5 + high * 8), knowing(low))
    trips = trips_until(high, ended_s, sizes, 5.0)
    assert log(times) / log(PROBES) - 1 <= trips <= 8 + 2 + ceil(log(times) / log(GROWS))


@settings(max_examples=20, deadline=None)
@given(fast=st.floats(3e5, 4e6))
def test_a_new_connection_doubles_each_round_trip_until_it_has_the_rate(fast: float) -> None:
    ended_s, sizes = sent([(0.0, fast)], int(fast * 4), opened(TRIP_S))
    doublings = log(fast * TRIP_S / INITIAL_BYTES, 2)
    assert doublings - 2 <= trips_until(fast, ended_s, sizes, 0.0) <= doublings + 3


def test_a_fall_of_less_than_ten_round_trips_is_forgotten() -> None:
    rates = [(0.0, 1e6), (1.0, 9e5), (1.5, 1e6)]
    ended_s, sizes = sent(rates, 4_000_000, knowing(1e6))
    assert trips_until(1e6, ended_s, sizes, 1.5) < 1


#: A link that loses much from the tenth round trip on, so that BBR takes it for policed.
LOW, HIGH = 2.5e5, 1e6
#: BBR believes so twice four round trips of double length after the fall.
POLICED = 10 + 2 * 8


def test_where_much_is_lost_it_believes_in_a_policer_and_keeps_to_its_rate_for_48_round_trips() -> None:
    connection = knowing(HIGH)
    sent([(0.0, HIGH), (1.0, LOW)], int(HIGH + LOW * (POLICED - 10 + 1) * TRIP_S), connection)
    assert connection["held"][0] == pytest.approx(LOW, rel=0.1)
    assert 48 - 8 <= connection["held_trips"][0] <= 48


@pytest.mark.parametrize("fallen_s", [3.0, 9.0, 30.0])
def test_a_path_taken_for_policed_is_filled_soon_after_its_rise_because_start_up_begins_again(fallen_s: float) -> None:
    up_s = 1.0 + fallen_s
    connection = knowing(HIGH)
    ended_s, sizes = sent([(0.0, HIGH), (1.0, LOW), (up_s, HIGH)], int(HIGH * 6 + LOW * fallen_s), connection)
    # It probes at the latest after eight round trips, and start-up takes two to four.
    assert trips_until(0.9 * HIGH, ended_s, sizes, up_s) <= 8 + 4
    assert connection["estimate"][0] == pytest.approx(HIGH, rel=0.05)


def test_a_pause_of_the_program_leaves_the_estimate_as_it_is() -> None:
    connection = knowing(1e6)
    for round_ in range(20):
        connection["ends_s"] = connection["ends_s"] if round_ else np.inf
        sent([(0.0, 1e6)], 40_000, connection)
        for moment in ("stopped_s", "began_s", "ends_s"):
            connection[moment] -= 1.0
    assert connection["estimate"][0] == pytest.approx(1e6)
