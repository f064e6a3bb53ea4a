"""The replay clock in real time, with rows a few hundredths of a second apart; how late it was is not judged here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.replay import ReplayClock, changes_from
from testbed.link import LinkState
from testbed.spec.topology import Link
from testbed.trace.trace import End, Row, Trace

pytestmark = pytest.mark.unit

STATE = LinkState(50e6, 0.02)
DEADLINE_S = 10.0


def link(name: str, rates: list[float], step_s: float, end: End = "hold") -> Link:
    source, target = name.split("->")
    rows = tuple(Row(i * step_s, rate) for i, rate in enumerate(rates))
    return Link(source, target, STATE, Trace(rows, end))


class Sink:
    """What was put in force, and when, on the clock's own time."""

    def __init__(self) -> None:
        self.clock = ReplayClock(self)
        self.batches: list[tuple[float, dict[str, float | None]]] = []
        self._came = threading.Condition()
        self.delay_s = 0.0

    def __call__(self, rows: Mapping[str, Row | None]) -> None:
        time.sleep(self.delay_s)
        with self._came:
            batch = {name: None if row is None else row.rate_bps for name, row in rows.items()}
            self.batches.append((self.clock.elapsed_s, batch))
            self._came.notify_all()

    def wait(self, count: int) -> None:
        """Until so many batches came."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.batches) >= count, DEADLINE_S), self.batches

    def rates(self, name: str) -> list[float | None]:
        return [batch[name] for _, batch in self.batches if name in batch]


@pytest.fixture
def sink() -> Sink:
    return Sink()


def test_every_row_comes_once_in_order_and_never_early(sink: Sink) -> None:
    rates = [float(i + 1) for i in range(10)]
    sink.clock.start([link("a->b", rates, 0.02)])
    sink.wait(10)
    sink.clock.stop()
    assert sink.rates("a->b") == rates
    assert all(at >= i * 0.02 for i, (at, _) in enumerate(sink.batches))


def test_a_late_tick_does_not_make_the_next_one_late(sink: Sink) -> None:
    """With a call that takes 10 ms of each 50 ms, sleeping relative times would be 90 ms late at the tenth row."""
    sink.delay_s = 0.01
    sink.clock.start([link("a->b", [float(i + 1) for i in range(10)], 0.05)])
    sink.wait(10)
    sink.clock.stop()
    late = [at - i * 0.05 for i, (at, _) in enumerate(sink.batches)]
    assert min(late) >= 0.01
    assert min(late[5:]) < 0.05


def test_lateness_is_recorded_for_each_tick_and_holds_the_call_itself(sink: Sink) -> None:
    sink.delay_s = 0.01
    sink.clock.start([link("a->b", [1.0, 2.0, 3.0], 0.2), link("b->a", [1.0], 1.0)])
    sink.wait(3)
    sink.clock.stop()
    late = sink.clock.lateness()
    assert {name: len(values) for name, values in late.items()} == {"a->b": 3, "b->a": 1}
    assert all(value >= 0.01 for values in late.values() for value in values)


def test_rows_due_together_come_in_one_batch(sink: Sink) -> None:
    sink.clock.start([link(name, [1.0, 2.0], 0.05) for name in ("a->b", "b->a", "b->c")])
    sink.wait(2)
    sink.clock.stop()
    assert [sorted(batch) for _, batch in sink.batches] == [["a->b", "b->a", "b->c"]] * 2


def test_a_clock_held_up_shows_only_the_newest_row(sink: Sink) -> None:
    sink.delay_s = 0.2
    sink.clock.start([link("a->b", [float(i + 1) for i in range(9)], 0.02)])
    sink.wait(2)
    sink.clock.stop()
    assert sink.rates("a->b") == [1.0, 9.0]
    late = sink.clock.lateness()["a->b"]
    assert len(late) == 9, "those that were passed over too"
    assert late[1] > late[8]


def test_a_loop_begins_again_and_a_trace_that_stops_ends_in_none(sink: Sink) -> None:
    sink.clock.start([link("a->b", [1.0, 2.0], 0.03, "loop"), link("b->a", [1.0, 2.0], 0.03, "stop")])
    sink.wait(5)
    sink.clock.stop()
    assert sink.rates("a->b")[:5] == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert sink.rates("b->a") == [1.0, 2.0, None]


def test_links_without_a_trace_are_left_alone(sink: Sink) -> None:
    sink.clock.start([Link("b", "a", STATE), link("a->b", [1.0], 1.0)])
    sink.wait(1)
    sink.clock.stop()
    assert [batch for _, batch in sink.batches] == [{"a->b": 1.0}]


def test_following_other_links_goes_on_where_the_replay_is(sink: Sink) -> None:
    sink.clock.start([link("a->b", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.03)])
    sink.wait(2)
    began = sink.clock.elapsed_s
    # A row each hundredth, so that the row in force tells the time at which it was taken up.
    sink.clock.follow([link("c->d", [float(i) for i in range(1000)], 0.01)])
    sink.wait(len(sink.batches) + 3)
    sink.clock.stop()
    rates = sink.rates("c->d")
    assert rates[0] is not None
    assert rates[0] * 0.01 >= began - 0.01
    after = next(i for i, (_, batch) in enumerate(sink.batches) if "c->d" in batch)
    assert all("a->b" not in batch for _, batch in sink.batches[after:])


def test_following_nothing_pauses_until_there_is_something(sink: Sink) -> None:
    sink.clock.start([])
    sink.clock.follow([link("a->b", [1.0], 1.0)])
    sink.wait(1)
    sink.clock.stop()
    assert sink.rates("a->b") == [1.0]


def test_stopping_ends_it_at_once_and_for_good(sink: Sink) -> None:
    sink.clock.start([link("a->b", [1.0, 2.0], 600.0)])
    sink.wait(1)
    began = time.monotonic()
    sink.clock.stop()
    assert time.monotonic() - began < DEADLINE_S
    sink.clock.stop()
    assert len(sink.batches) == 1
    assert sink.clock.failure is None


def test_a_clock_that_never_started_can_be_stopped(sink: Sink) -> None:
    sink.clock.stop()
    assert sink.clock.elapsed_s == 0


def test_what_breaks_the_replay_is_kept() -> None:
    broke = threading.Event()

    def apply(_: object) -> None:
        broke.set()
        raise RuntimeError("the shaper has gone")

    clock = ReplayClock(apply)
    clock.start([link("a->b", [1.0, 2.0], 0.02)])
    assert broke.wait(DEADLINE_S)
    clock.stop()
    assert str(clock.failure) == "the shaper has gone"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_without_an_error_is_a_failure_too() -> None:
    def apply(_: object) -> None:
        raise SystemExit  # ends a thread in silence

    clock = ReplayClock(apply)
    assert clock.failure is None
    clock.start([link("a->b", [1.0, 2.0], 0.02)])
    deadline = time.monotonic() + DEADLINE_S
    while clock.failure is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert "ended without a word" in str(clock.failure)


def test_rows_come_also_where_no_priority_is_granted(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "setpriority", refuse)
    sink.clock.start([link("a->b", [1.0, 2.0], 0.02)])
    sink.wait(2)
    sink.clock.stop()
    assert sink.clock.failure is None


def test_what_goes_wrong_before_the_first_row_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise OSError("no such scheduler")

    monkeypatch.setattr(os, "sched_setscheduler", break_down)
    clock = ReplayClock(lambda _: None)
    clock.start([link("a->b", [1.0, 2.0], 600.0)])
    clock._thread.join(DEADLINE_S)
    assert "no such scheduler" in str(clock.failure)


#: Rows at eighths of a second: such times add without rounding.
eighths = st.integers(1, 40)


@given(
    st.lists(eighths, unique=True, max_size=5).map(sorted),
    st.sampled_from(["loop", "hold", "stop"]),
    st.integers(0, 1000),
)
def test_changes_from_a_moment_are_what_the_trace_says(times: list[int], end: End, elapsed: int) -> None:
    rows = tuple(Row(time / 8, float(i)) for i, time in enumerate([0, *times]))
    trace = Trace(rows, end)
    found = list(islice(changes_from(trace, elapsed / 8), 8))
    assert found[0] == (elapsed / 8, trace.at(elapsed / 8))
    every = list(islice(trace.changes(), 8000))
    assert found[1:] == [change for change in every if change[0] > elapsed / 8][: len(found) - 1]
    assert len(found) == min(8, 1 + sum(moment > elapsed / 8 for moment, _ in every))


def test_the_laps_that_are_over_are_not_walked() -> None:
    trace = Trace((Row(0.0, 1.0), Row(0.25, 2.0)), "loop")
    assert next(changes_from(trace, 1e12 + 0.25)) == (1e12 + 0.25, trace.rows[1])
