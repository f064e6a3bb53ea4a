"""The replay hands rows over ahead of their moments.

The shaper here puts rows in force by a clock that the test moves, so nothing depends on how busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.links import replay as module
from testbed.emulation.links.links import Links
from testbed.emulation.links.replay import AHEAD_S, Replay, _RowFeed, changes_from
from testbed.emulation.shaping.base import Applied, FutureStates, ShapingError
from testbed.link import LinkState
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link
from testbed.trace.trace import End, Row, Trace
from tests.emulation.recorder import Recorder
from tests.waiting import until

pytestmark = pytest.mark.local

STATE = LinkState(50e6, 0.02)


def link(name: str, rates: list[float], step_s: float, end: End = "hold") -> Link:
    source, target = name.split("->")
    rows = tuple(Row(i * step_s, rate) for i, rate in enumerate(rates))
    return Link(source, target, STATE, Trace(rows, end))


class Stage:
    """A replay of some links, over a shaper whose time is ours."""

    def __init__(self, *links: Link) -> None:
        self.shaper = Recorder()
        self.changes: list[tuple[str, float]] = []
        self.links = Links(self.shaper, lambda _, name, state: self.changes.append((name, state.rate_bps)))
        for each in links:
            self.links.add(each)
        self.replay = Replay(self.links)

    def start(self, *links: Link, in_s: float = 1000.0) -> None:
        """Start the replay `in_s` seconds from now, which is later than any test ends.

        So the replay stands at 0, however busy the machine is, and `pass_` alone puts rows in force.
        """
        self.shaper.now_s = 0.0
        self.replay.start(links, time.monotonic() + in_s)

    def pass_(self, elapsed_s: float) -> None:
        """Put in force and record the rows that are due `elapsed_s` seconds after the begin."""
        assert self.replay.began_s is not None
        self.shaper.now_s = self.replay.began_s + elapsed_s
        self.links.collect()

    def rates(self, name: str) -> list[float]:
        return [rate for changed, rate in self.changes if changed == name][1:]  # the first is of the link's beginning


def test_at_a_start_the_rows_that_are_due_soon_are_sent_first() -> None:
    stage = Stage(*(made := [link(name, [1e6 * (i + 1) for i in range(9000)], 0.001) for name in ("a->b", "b->a")]))
    sent: list[dict[str, float]] = []
    expect = stage.shaper.expect

    def note(coming: Mapping[str, FutureStates]) -> None:
        expect(coming)
        if last := {name: states[-1][0] for name, states in coming.items() if states}:
            sent.append(last)

    stage.shaper.expect = note  # type: ignore[method-assign]
    stage.start(*made)
    stage.replay.stop()
    began_s = stage.replay.began_s
    assert began_s is not None
    assert [{name: round(at_s - began_s, 3) for name, at_s in one.items()} for one in sent[:3]] == [
        dict.fromkeys(("a->b", "b->a"), ahead_s) for ahead_s in (0.05, 0.5, 5.0)
    ]


@pytest.fixture
def waits() -> Iterator[None]:
    """Let the replay look for new rows every 2 ms."""
    before, module.PERIOD_S = module.PERIOD_S, 0.002
    yield
    module.PERIOD_S = before


def test_every_row_comes_once_in_order_and_never_early() -> None:
    traced = link("a->b", [float(i + 1) for i in range(10)], 0.02)
    stage = Stage(traced)
    stage.start(traced)
    stage.replay.stop()
    due = [due_s - (stage.replay.began_s or 0.0) for due_s, _ in stage.shaper.coming["a->b"]]
    assert due == [], "what was to come does not any more"
    sent = [(due_s - (stage.replay.began_s or 0.0), state.rate_bps) for due_s, state in stage.shaper.sent["a->b"]]
    assert [rate for _, rate in sent] == [float(i + 1) for i in range(10)]
    assert [moment for moment, _ in sent[1:]] == pytest.approx([i * 0.02 for i in range(1, 10)])
    assert sent[0][0] == 0, "the first is due when the replay begins"


def test_rows_are_handed_over_ahead_and_no_further(waits: None) -> None:
    traced = link("a->b", [float(i) for i in range(600)], 0.1)
    stage = Stage(traced)
    stage.start(traced, in_s=0.0)
    first, elapsed_s = len(stage.shaper.sent["a->b"]), stage.replay.elapsed_s
    assert AHEAD_S / 0.1 - 2 <= first <= (elapsed_s + AHEAD_S) / 0.1 + 2
    until(lambda: len(stage.shaper.sent["a->b"]) > first)
    stage.replay.stop()
    reach = stage.shaper.sent["a->b"][-1][0] - (stage.replay.began_s or 0.0)
    assert reach <= stage.replay.elapsed_s + AHEAD_S


def test_what_is_in_force_is_noted_with_how_late_it_was() -> None:
    traced, other = link("a->b", [1.0, 2.0, 3.0], 1.0), link("b->a", [1.0], 1.0)
    stage = Stage(traced, other)
    stage.start(traced, other)
    stage.shaper.late_s = 0.004
    stage.pass_(1.5)
    assert stage.links.states()["a->b"].rate_bps == 2.0
    stage.pass_(2.5)
    stage.replay.stop()
    assert stage.rates("a->b") == [2.0, 3.0], "the first row was in force from the start"
    late = stage.links.lateness()
    assert late == {"a->b": [0.004, 0.004], "b->a": []}, "rows that were in force already do not count"
    assert stage.links.lateness(newest=True) == late


def test_a_loop_begins_again_and_a_trace_that_stops_ends_in_a_link_that_is_down() -> None:
    looped, stopped = link("a->b", [1.0, 2.0], 1.0, "loop"), link("b->a", [1.0, 2.0], 1.0, "stop")
    stage = Stage(looped, stopped)
    stage.start(looped, stopped)
    stage.pass_(4.5)
    stage.replay.stop()
    assert stage.rates("a->b") == [2.0, 1.0, 2.0, 1.0]
    assert stage.rates("b->a")[0] == 2.0
    assert not stage.links.states()["b->a"].up


def test_links_without_a_trace_are_left_alone() -> None:
    plain, traced = Link("b", "a", STATE), link("a->b", [1.0], 1.0)
    stage = Stage(plain, traced)
    stage.start(plain, traced)
    stage.replay.stop()
    assert stage.shaper.sent.keys() == {"a->b"}


def test_following_other_links_goes_on_where_the_replay_is() -> None:
    first, second = link("a->b", [1.0, 2.0], 1.0), link("c->d", [float(i) for i in range(1, 1000)], 0.01)
    stage = Stage(first)
    stage.start(first, in_s=0.0)
    stage.links.add(second)
    began, before = stage.replay.began_s or 0.0, stage.replay.elapsed_s
    stage.replay.follow([second])
    stage.replay.stop()
    assert not stage.shaper.coming["a->b"], "its rows do not come any more"
    due_s, state = stage.shaper.sent["c->d"][0]
    assert due_s - began >= before
    assert state.rate_bps - 1 == pytest.approx((due_s - began) / 0.01, abs=1), "the row in force then"


def test_following_nothing_pauses_until_there_is_something() -> None:
    traced = link("a->b", [1.0, 2.0], 1.0)
    stage = Stage(traced)
    stage.start()
    assert not stage.shaper.sent
    stage.replay.follow([traced])
    stage.replay.stop()
    assert stage.shaper.sent["a->b"]


def test_a_change_holds_over_rows_that_are_on_their_way() -> None:
    traced = link("a->b", [1e6, 2e6, 3e6], 1.0)
    stage = Stage(traced)
    stage.start(traced)
    stage.pass_(0.5)
    stage.links.change(LinkChange.model_validate({"link": "a->b", "delay": "100ms"}))
    stage.pass_(1.5)
    state = stage.links.states()["a->b"]
    assert (state.rate_bps, state.delay_s) == (2e6, 0.1)
    stage.links.take(["a->b"], up=False)
    stage.pass_(2.5)
    assert not stage.links.states()["a->b"].up
    stage.links.take(["a->b"], up=True)
    state = stage.links.states()["a->b"]
    stage.replay.stop()
    assert (state.rate_bps, state.delay_s, state.up) == (3e6, 0.1, True)
    assert len(stage.links.lateness()["a->b"]) == 2, "each row after the first once"


def test_a_row_that_comes_as_the_queued_ones_are_dropped_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = link("a->b", [1.0, 2.0, 3.0], 1.0)
    stage = Stage(traced)
    stage.start(traced)
    stage.pass_(0.5)
    began, apply, applied = stage.replay.began_s or 0.0, stage.shaper.apply, stage.shaper.applied
    meanwhile: list[Applied] = []

    def comes_first(states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        stage.shaper.now_s = began + 1.5
        meanwhile.extend(applied())
        apply(states, coming)

    def told() -> list[Applied]:
        found = [*meanwhile, *applied()]
        meanwhile.clear()
        return found

    monkeypatch.setattr(stage.shaper, "apply", comes_first)
    monkeypatch.setattr(stage.shaper, "applied", told)
    stage.replay.pause()
    assert stage.rates("a->b") == [2.0]
    assert stage.links.states()["a->b"].rate_bps == 2.0
    stage.replay.stop()


def test_stopping_leaves_the_states_in_force() -> None:
    traced = link("a->b", [1.0, 2.0], 1.0)
    stage = Stage(traced)
    stage.start(traced)
    stage.pass_(0.5)
    stage.replay.stop()
    stage.replay.stop()
    stage.pass_(1.5)
    assert stage.links.states()["a->b"].rate_bps == 1.0
    assert stage.replay.failure is None


def test_a_replay_that_never_started_can_be_stopped() -> None:
    stage = Stage(link("a->b", [1.0], 1.0))
    stage.replay.stop()
    assert stage.replay.elapsed_s == 0


def test_what_breaks_the_replay_is_kept(waits: None) -> None:
    traced = link("a->b", [float(i) for i in range(10_000)], 0.01)
    stage = Stage(traced)
    stage.start(traced, in_s=0.0)
    stage.shaper.broken = True
    until(lambda: stage.replay.failure is not None)
    stage.replay.stop()
    assert isinstance(stage.replay.failure, ShapingError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_without_an_error_is_a_failure_too(waits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object) -> None:
        raise SystemExit  # ends a thread in silence

    traced = link("a->b", [1.0], 1.0)
    stage = Stage(traced)
    assert stage.replay.failure is None
    stage.start(traced)
    monkeypatch.setattr(stage.links, "replay", end)
    until(lambda: stage.replay.failure is not None)
    assert isinstance(stage.replay.failure, RuntimeError)


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


def test_a_trace_that_changes_nothing_is_one_row_to_the_shaper() -> None:
    steady = Trace((Row(0.0, 12e6), Row(0.0005, 12e6)), "loop")
    assert list(changes_from(steady, 1e6)) == [(1e6, steady.rows[0])]


def test_a_feed_that_was_long_in_the_making_begins_with_the_row_in_force() -> None:
    trace = Trace(tuple(Row(i / 10, 1e6 * (i + 1)) for i in range(30)), "hold")
    feed = _RowFeed(trace, 1.0)
    feed.catch_up(1.55)
    rows = [(at_s, row.rate_bps) for at_s, row in feed.until(1.75) if row is not None]
    assert rows == [(1.55, 16e6), (1.6, 17e6), (1.7, 18e6)]
    feed.catch_up(1.75)
    assert [at_s for at_s, _ in feed.until(1.85)] == [1.8], "the row in force is known"


def test_the_laps_that_are_over_are_not_walked() -> None:
    trace = Trace((Row(0.0, 1.0), Row(0.25, 2.0)), "loop")
    assert next(changes_from(trace, 1e12 + 0.25)) == (1e12 + 0.25, trace.rows[1])
