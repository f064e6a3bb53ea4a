from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.protocol import TICK_S, Tick
from testbed.telemetry.trains import LEAST_TICKS, STALLED_TICKS, TRAIN_BYTES, TRAIN_TICKS, load, rate_bps, trains

pytestmark = pytest.mark.unit

FULL = round(1e3 * TICK_S)


def busy(first: int, count: int, carried: int) -> list[Tick]:
    return [Tick(first + i, carried, FULL) for i in range(count)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 10**6), st.integers(0, FULL)), max_size=60))
def test_trains_are_made_of_busy_ticks_in_a_row_each_in_one_train(steps: list[tuple[int, int, int]]) -> None:
    number, ticks = 0, []
    for gap, carried, busy_ms in steps:
        number += gap
        ticks.append(Tick(number, carried, busy_ms))
    found = trains(ticks)
    full = {tick.number for tick in ticks if tick.busy_ms >= 0.9 * FULL}
    carried = load([ticks])
    members = [number for train in found for number in train]
    assert len(members) == len(set(members)) and set(members) <= full
    for train in found:
        assert list(train) == list(range(train[0], train[-1] + 1))
        assert LEAST_TICKS <= len(train) <= TRAIN_TICKS
        assert len(train) == LEAST_TICKS or sum(carried[number] for number in train[:-1]) < TRAIN_BYTES


def test_a_train_ends_when_it_carried_enough_lasted_long_enough_or_was_not_busy() -> None:
    assert [len(train) for train in trains(busy(0, 9, TRAIN_BYTES // 4))] == [4, 4]
    assert [len(train) for train in trains(busy(0, 2 * TRAIN_TICKS + 1, 1000))] == [TRAIN_TICKS] * 2
    assert trains([*busy(0, 4, 1000), Tick(4, 1000, FULL // 2), *busy(5, 3, 1000)]) == [(1, 2, 3), (6, 7)]
    assert trains([*busy(0, 3, 1000), *busy(4, 2, 1000)]) == [(1, 2)]  # a lone tick says too little
    assert trains([]) == []


def test_a_train_begins_after_the_first_acknowledgements() -> None:
    assert trains([*busy(0, 3, 0), *busy(3, 4, 1000)]) == [(4, 5, 6)]


def test_a_path_that_was_away_is_not_taken_for_a_slow_one() -> None:
    """Down in the middle of tick 4; TCP finds its way again in tick 44."""
    away = [*busy(0, 4, 30_000), Tick(4, 9_000, FULL), *busy(5, 39, 0), Tick(44, 3_000, FULL), *busy(45, 4, 30_000)]
    assert trains(away) == [(1, 2, 3, 4), (45, 46, 47, 48)]
    slow = [tick for i in range(6) for tick in (*busy(STALLED_TICKS * i, 1, 1448), *busy(STALLED_TICKS * i + 1, 4, 0))]
    assert sum(len(train) for train in trains(slow)) == len(slow) - 1  # a packet each 250 ms is slow, and goes on


def test_a_rate_counts_frames_of_all_that_was_carried() -> None:
    carried = load([busy(0, 2, 1448), busy(1, 2, 1448)])
    assert carried == {0: 1448, 1: 2896, 2: 1448}
    assert rate_bps((0, 1), carried) == pytest.approx(8 * 3 * 1448 / (2 * TICK_S) * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES)
