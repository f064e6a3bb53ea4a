"""The state that is requested of each link. The shaper here only records its calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.links.links import NEWEST, REMEMBERED, Lateness, Links
from testbed.emulation.shaping.base import ShapingError
from testbed.link import LinkState, Opportunities
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link
from testbed.trace.trace import Row, Trace
from tests.emulation.recorder import Recorder

pytestmark = pytest.mark.local

STATE = LinkState(rate_bps=50e6, delay_s=0.02)
TRACE = Trace((Row(0, 40e6), Row(1, 20e6, loss=0.1), Row(2, 10e6)), "stop")
PLAIN = Link("a", "b", STATE)
TRACED = Link("b", "a", STATE, TRACE)


def come(links: Links, shaper: Recorder, rows: Mapping[str, Row | None]) -> None:
    """Rows come to be in force."""
    shaper.now_s += 1
    links.replay({name: [(shaper.now_s, row)] for name, row in rows.items()})
    links.collect()


@pytest.fixture
def shaper() -> Recorder:
    return Recorder()


@pytest.fixture
def seen() -> list[tuple[float, str, LinkState]]:
    return []


@pytest.fixture
def links(shaper: Recorder, seen: list[tuple[float, str, LinkState]]) -> Links:
    links = Links(shaper, lambda *record: seen.append(record))
    links.add(PLAIN)
    links.add(TRACED)
    return links


def change(link: str, **values: str) -> LinkChange:
    return LinkChange.model_validate({"link": link, **values})


def test_a_link_begins_as_configured_or_as_its_trace_begins(links: Links, shaper: Recorder) -> None:
    assert links.states() == {"a->b": STATE, "b->a": replace(STATE, rate_bps=40e6)}
    assert shaper.batches == []


def test_a_row_goes_over_the_configured_state(links: Links, shaper: Recorder) -> None:
    come(links, shaper, {"b->a": TRACE.rows[1]})
    come(links, shaper, {"b->a": TRACE.rows[2]})
    expected = [replace(STATE, rate_bps=20e6, loss=0.1), replace(STATE, rate_bps=10e6)]
    assert [state for _, state in shaper.sent["b->a"]] == expected
    assert links.states()["b->a"] == expected[-1]


def test_a_change_goes_over_the_trace_and_stays(links: Links, shaper: Recorder) -> None:
    links.change(change("b->a", rate="5mbit"))
    links.change(change("b->a", loss="1%"))
    come(links, shaper, {"b->a": TRACE.rows[1]})
    assert links.states()["b->a"] == replace(STATE, rate_bps=5e6, loss=0.01)
    links.change(change("b->a", rate="7mbit"))
    assert links.states()["b->a"] == replace(STATE, rate_bps=7e6, loss=0.01)


def test_down_goes_over_everything_and_up_shows_what_came_meanwhile(links: Links, shaper: Recorder) -> None:
    links.take(["a->b", "b->a"], up=False)
    assert [*shaper.batches[0]] == ["a->b", "b->a"]  # one batch
    assert links.down == {"a->b", "b->a"}
    come(links, shaper, {"b->a": TRACE.rows[2]})
    links.change(change("a->b", rate="7mbit"))
    assert not any(state.up for state in links.states().values())
    links.take(["a->b", "b->a"], up=True)
    assert links.states() == {"a->b": replace(STATE, rate_bps=7e6), "b->a": replace(STATE, rate_bps=10e6)}
    assert links.down == frozenset()


def test_the_end_of_a_trace_that_stops_takes_the_link_down(links: Links, shaper: Recorder) -> None:
    come(links, shaper, {"b->a": None})
    assert not links.states()["b->a"].up
    links.change(change("b->a", rate="5mbit"))
    links.take(["b->a"], up=True)
    assert not links.states()["b->a"].up
    come(links, shaper, {"b->a": TRACE.rows[0]})
    assert links.states()["b->a"].up


def test_a_trace_s_end_is_sent_again_as_a_link_that_was_down_comes_up(links: Links, shaper: Recorder) -> None:
    """The kernel's shaper holds a future state as its difference from the state before, here of one that is down."""
    links.take(["b->a"], up=False)
    links.replay({"b->a": [(1.0, None)]})
    links.take(["b->a"], up=True)
    assert [(due_s, state.up) for due_s, state in shaper.sent["b->a"]] == [(1.0, False)] * 2
    assert len(shaper.coming["b->a"]) == 1


def test_what_changes_nothing_is_not_applied(
    links: Links, shaper: Recorder, seen: list[tuple[float, str, LinkState]]
) -> None:
    come(links, shaper, {"b->a": TRACE.rows[0]})
    links.change(change("a->b", rate="50mbit"))
    links.take(["a->b"], up=True)
    links.configure([PLAIN, TRACED])
    assert shaper.batches == []
    come(links, shaper, {"b->a": TRACE.rows[1], "a->b": None, "gone->b": TRACE.rows[1]})
    assert [*shaper.sent] == ["b->a"]
    assert [name for _, name, _ in seen] == ["a->b", "b->a", "b->a"]


def test_a_row_that_was_due_and_never_came_is_late(links: Links, shaper: Recorder) -> None:
    """The shaper stops without an error after the first row, which changes nothing."""
    come(links, shaper, {"b->a": TRACE.rows[0]})
    now = time.monotonic()
    links.replay(
        {"b->a": [(now + in_s, Row(0, rate)) for in_s, rate in ((-60, 2e6), (-30, 2e6), (-1, 3e6), (60, 4e6))]}
    )
    links.collect()
    assert links.lateness() == {"b->a": []}
    links.replay({}, replace_queued=True)
    assert links.lateness()["b->a"] == pytest.approx([60, 1], abs=0.9)


def test_a_link_without_a_trace_is_not_replayed(links: Links, shaper: Recorder) -> None:
    links.configure([Link("b", "a", STATE)])
    come(links, shaper, {"b->a": TRACE.rows[2]})  # was on its way when the network was swapped
    assert links.states()["b->a"] == STATE


def test_configuring_forgets_changes_and_rows_but_not_what_is_down(links: Links, shaper: Recorder) -> None:
    come(links, shaper, {"b->a": TRACE.rows[2]})
    links.change(change("b->a", loss="1%"))
    links.take(["b->a"], up=False)
    slower = replace(STATE, rate_bps=1e6)
    links.configure(iter([Link("a", "b", slower), Link("b", "a", slower, TRACE)]))
    assert links.states() == {"a->b": slower, "b->a": replace(slower, rate_bps=40e6, up=False)}
    links.take(["b->a"], up=True)
    assert links.states()["b->a"] == replace(slower, rate_bps=40e6)


def test_a_link_that_was_removed_and_added_begins_again(links: Links) -> None:
    links.change(change("a->b", rate="5mbit"))
    links.take(["a->b"], up=False)
    links.remove("a->b")
    assert "a->b" not in links.states()
    assert links.add(PLAIN) == STATE
    assert links.down == frozenset()


def test_an_unknown_link_is_named_and_nothing_is_done(links: Links, shaper: Recorder) -> None:
    with pytest.raises(KeyError, match="a->b, b->a"):
        links.change(change("x->y", rate="5mbit"))
    with pytest.raises(KeyError, match="x->y"):
        links.take(["a->b", "x->y"], up=False)
    assert links.down == frozenset()
    assert shaper.batches == []


def test_a_jitter_beyond_the_shaper_s_is_refused_before_any_change(links: Links, shaper: Recorder) -> None:
    shaper.most_jitter_s = 2.0
    links.check(change("a->b", jitter="2s"))
    with pytest.raises(ShapingError) as refused:
        links.check(change("a->b", jitter="3s"))
    assert (refused.value.rule, refused.value.link, shaper.batches) == ("jitter", "a->b", [])


def test_a_state_that_could_not_be_applied_is_not_in_force(links: Links, shaper: Recorder) -> None:
    shaper.broken = True
    with pytest.raises(ShapingError):
        links.change(change("a->b", rate="5mbit"))
    assert links.states()["a->b"] == STATE
    shaper.broken = False
    links.change(change("a->b", loss="1%"))
    assert shaper.batches == [{"a->b": replace(STATE, loss=0.01)}]


def test_a_change_that_may_be_carried_out_late_is_made_again(
    links: Links, shaper: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = shaper.apply

    def without_answer(states: Mapping[str, LinkState], coming: object = None) -> None:
        apply(states)
        raise ShapingError("no answer", rule="timeout")

    with monkeypatch.context() as silent:
        silent.setattr(shaper, "apply", without_answer)
        with pytest.raises(ShapingError):
            links.change(change("a->b", rate="5mbit"))
    links.change(change("a->b", rate=f"{STATE.rate_bps / 1e6:g}mbit"))  # as it was before
    links.change(change("a->b", rate=f"{STATE.rate_bps / 1e6:g}mbit"))
    assert shaper.batches == [{"a->b": replace(STATE, rate_bps=5e6)}, {"a->b": STATE}]


def test_a_refused_request_leaves_later_rows_and_changes_as_they_were(links: Links, shaper: Recorder) -> None:
    links.change(change("b->a", delay="30ms"))
    links.replay({"b->a": [(1.0, TRACE.rows[1])]})
    before = links.requested()
    shaper.broken = True
    with pytest.raises(ShapingError):
        links.change(change("b->a", rate="5mbit"))
    with pytest.raises(ShapingError):
        links.take(["a->b", "b->a"], up=False)
    shaper.broken = False
    assert (links.requested(), links.down) == (before, frozenset())
    come(links, shaper, {"b->a": TRACE.rows[2]})
    assert links.states() == {"a->b": STATE, "b->a": replace(STATE, rate_bps=10e6, delay_s=0.03)}


ACTIONS = st.one_of(
    st.tuples(st.just("row"), st.sampled_from([*TRACE.rows, None])),
    st.tuples(st.just("rate"), st.sampled_from(["1mbit", "50mbit"])),
    st.tuples(st.just("up"), st.booleans()),
)


@given(st.lists(ACTIONS, max_size=12))
def test_whatever_the_order_the_four_voices_are_composed_alike(actions: list[tuple[str, object]]) -> None:
    shaper, seen = Recorder(), []
    links = Links(shaper, lambda *record: seen.append(record))
    row: object = TRACE.rows[0]
    rate, up = None, True
    links.add(TRACED)
    for kind, value in actions:
        if kind == "row":
            row = value
            come(links, shaper, {"b->a": value})  # type: ignore[dict-item]
        elif kind == "rate":
            rate = float(str(value).removesuffix("mbit")) * 1e6
            links.change(change("b->a", rate=str(value)))
        else:
            up = bool(value)
            links.take(["b->a"], up=up)
    state = row.over(STATE) if isinstance(row, Row) else STATE
    state = replace(state, rate_bps=rate or state.rate_bps, up=up and row is not None)
    assert links.states()["b->a"] == state
    assert seen[-1][2] == state
    assert all(before != after for before, after in pairwise([record[2] for record in seen]))


class Running:
    """A replay that began 10 s after the monotonic clock's 0."""

    elapsed_s = 1.5
    began_s: float | None = None


def test_single_opportunities_are_served_from_the_replay_s_begin_on(links: Links, shaper: Recorder) -> None:
    clock, opportunities = Running(), Opportunities((1, 2, 3))
    link = replace(TRACED, trace=replace(TRACE, opportunities=opportunities).begun(0.5))
    links.follow(clock)
    links.configure([link])
    assert links.states()["b->a"].delivery is None
    clock.began_s = 10.0
    come(links, shaper, {"b->a": TRACE.rows[1]})
    delivery = links.states()["b->a"].delivery
    assert delivery is not None
    assert (delivery.opportunities, delivery.began_s, delivery.end) == (opportunities, 9.5, "stop")
    come(links, shaper, {"b->a": TRACE.rows[2]})
    assert shaper.sent["b->a"][-1][1].delivery is delivery
    assert links.states()["b->a"].rate_bps == 10e6


def test_a_rate_that_is_asked_for_goes_over_single_opportunities(links: Links, shaper: Recorder) -> None:
    clock = Running()
    clock.began_s = 10.0
    links.follow(clock)
    links.configure([replace(TRACED, trace=replace(TRACE, opportunities=Opportunities((1, 2, 3))))])
    assert links.states()["b->a"].delivery is None  # until the replay speaks of it
    come(links, shaper, {"b->a": TRACE.rows[1]})
    links.change(change("b->a", loss="1%"))
    assert links.states()["b->a"].delivery is not None
    links.change(change("b->a", rate="5mbit"))
    assert links.states()["b->a"].delivery is None
    links.configure([TRACED])
    assert links.states()["b->a"] == replace(STATE, rate_bps=20e6, loss=0.1)


def test_the_lateness_of_a_long_replay_is_of_all_its_time() -> None:
    late = Lateness()
    for number in range(2 * REMEMBERED):
        late.append(0.05 if number < REMEMBERED else 0.001)
    assert REMEMBERED / 2 <= len(late.spread) <= REMEMBERED
    assert sum(each == 0.05 for each in late.spread) / len(late.spread) == pytest.approx(0.5, abs=0.01)
    assert list(late.newest) == [0.001] * NEWEST
