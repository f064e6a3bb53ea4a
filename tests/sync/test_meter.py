from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol import TICK_S
from testbed.sync.meter import KEPT, Ticks
from testbed.sync.tcpinfo import TcpInfo

pytestmark = pytest.mark.unit

LINE = ("b", 0, 0)


def counters(sent: int, busy_s: float, unsent: int = 1) -> TcpInfo:
    return TcpInfo(sent, busy_s, 0.01, 0.01, 0, 0, unsent)


@pytest.fixture
def meter() -> Ticks:
    return Ticks()


@given(st.lists(st.tuples(st.floats(0.01, 0.3), st.integers(0, 10**6), st.floats(0, 1)), min_size=1, max_size=30))
def test_ticks_hold_all_that_grew_up_to_the_last_whole_one(steps: list[tuple[float, int, float]]) -> None:
    meter = Ticks()
    now, sent, busy_s = 1e9 + 0.013, 0, 0.0
    meter.read(now, {LINE: counters(0, 0.0)})
    for seconds, grown, part in steps:
        now, sent, busy_s = now + seconds, sent + grown, busy_s + part * seconds
        meter.read(now, {LINE: counters(sent, busy_s)})
    meter.read(now + 2 * TICK_S, {LINE: counters(sent, busy_s)})
    ticks = meter.take().get("b", ())
    assert sum(tick.bytes for tick in ticks) == pytest.approx(sent, abs=len(ticks))
    assert sum(tick.busy_ms for tick in ticks) == pytest.approx(1e3 * busy_s, abs=len(ticks))
    assert [tick.number for tick in ticks] == sorted({tick.number for tick in ticks})
    assert all(1e9 <= tick.number * TICK_S < now and tick.busy_ms <= 1e3 * TICK_S for tick in ticks)


def test_a_late_reading_is_spread_over_the_ticks_in_between(meter: Ticks) -> None:
    meter.read(100.0, {LINE: counters(0, 0.0)})
    meter.read(100.0 + 4 * TICK_S, {LINE: counters(4000, 4 * TICK_S)})
    assert [(tick.bytes, tick.busy_ms) for tick in meter.take()["b"]] == [(1000, round(1e3 * TICK_S))] * 4


def test_what_only_waits_for_its_acknowledgement_is_not_busy(meter: Ticks) -> None:
    for i, unsent in enumerate((5000, 5000, 0, 0, 5000)):
        meter.read(100.0 + i * TICK_S, {LINE: counters(1000 * i, i * TICK_S, unsent)})
    assert [tick.busy_ms for tick in meter.take()["b"]] == [round(1e3 * TICK_S), 0, 0, 0]


def test_what_only_waits_for_its_acknowledgement_is_queued_where_round_trips_are_long(meter: Ticks) -> None:
    for i, rtt_s in enumerate((0.03, 0.03, 0.01, 0.01, 0.03)):
        meter.read(100.0 + i * TICK_S, {LINE: TcpInfo(1000 * i, i * TICK_S, rtt_s, 0.01, 0, 0)})
    assert [tick.queued_ms for tick in meter.take()["b"]] == [round(1e3 * TICK_S), 0, 0, 0]


def test_connections_to_one_peer_add_up_and_what_was_taken_does_not_come_again(meter: Ticks) -> None:
    meter.read(100.0, {LINE: counters(0, 0.0), ("b", 2, 0): counters(0, 0.0)})
    meter.read(100.0 + TICK_S, {LINE: counters(100, TICK_S / 2), ("b", 2, 0): counters(300, TICK_S)})
    meter.read(100.0 + 2 * TICK_S, {LINE: counters(100, TICK_S / 2), ("b", 2, 0): counters(300, TICK_S)})
    (tick,) = meter.take()["b"]
    assert (tick.bytes, tick.busy_ms) == (400, round(1e3 * TICK_S))
    assert not meter.take()["b"]


def test_a_new_connection_counts_from_its_second_reading(meter: Ticks) -> None:
    meter.read(100.0, {LINE: counters(5000, 1.0)})
    meter.read(100.0 + TICK_S, {LINE: counters(10, 0.01)})  # another one of that number: it counts afresh
    assert meter.take() == {}


def test_what_nobody_takes_does_not_grow_without_end(meter: Ticks) -> None:
    for i in range(2 * KEPT):
        meter.read(100.0 + i * TICK_S, {LINE: counters(1000 * i, i * TICK_S)})
    assert len(meter.take()["b"]) <= KEPT
