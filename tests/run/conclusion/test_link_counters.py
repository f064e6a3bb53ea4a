from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.run.conclusion.link_counters import (
    LOOK_S,
    SUPER_PACKET_BITS,
    WINDOW,
    CounterReading,
    bypassed_bytes,
    rate_excess,
)

pytestmark = pytest.mark.pure

RATE = 8e6


def state(at_s: float, rate_bps: float, link: str = "a->b") -> dict[str, Any]:
    return {"at_s": at_s, "link": link, "rate_bps": rate_bps}


def samples(*bits_per_second: float, link: str = "a->b") -> list[dict[str, Any]]:
    totals = [sum(bits_per_second[:i]) / 8 for i in range(len(bits_per_second) + 1)]
    return [{"at_s": float(at_s), "bytes": {link: 5_000 + total}} for at_s, total in enumerate(totals)]


def test_a_link_at_its_rate_passes_no_more_than_it_may() -> None:
    assert rate_excess(samples(*[RATE] * 9), [state(-60, RATE)]) == {}


def test_a_link_that_something_unshaped_is_found() -> None:
    found = rate_excess(samples(*[RATE] * 4, *[3 * RATE] * 3, *[RATE] * 4), [state(-60, RATE)])
    assert found == {"a->b": pytest.approx(2.0)}


def test_what_cannot_be_told_from_nothing_is_not_held_against_a_link() -> None:
    just = WINDOW * RATE * (1 + LOOK_S / WINDOW) + SUPER_PACKET_BITS
    assert rate_excess(samples(*[just / WINDOW * 0.999] * WINDOW), [state(-60, RATE)]) == {}
    assert rate_excess(samples(*[just / WINDOW * 1.001] * WINDOW), [state(-60, RATE)]).keys() == {"a->b"}


def test_what_left_before_the_rate_fell_may_still_arrive() -> None:
    states = [state(-60, 4 * RATE), state(4.0, RATE)]
    assert rate_excess(samples(*[4 * RATE] * 4, 2 * RATE, *[RATE] * 8), states) == {}
    assert rate_excess(samples(*[4 * RATE] * 9), [state(-60, 4 * RATE), state(1.0, RATE)]).keys() == {"a->b"}


def test_what_a_long_link_holds_may_arrive_at_the_rate_of_its_sending() -> None:
    states = [{**state(-60, 4 * RATE), "delay_s": 5.0}, {**state(4, RATE), "delay_s": 5.0}]
    assert rate_excess(samples(*[4 * RATE] * 9, *[RATE] * 9), states) == {}
    assert rate_excess(samples(*[4 * RATE] * 14, *[RATE] * 4), states)


def test_what_was_sent_before_the_delay_fell_may_arrive_at_once() -> None:
    """A core whose delay follows its queue lets 0.24 s of the rate pass at once."""
    fell = [{**state(-60, RATE), "delay_s": 0.25}, {**state(4.0, RATE), "delay_s": 0.01}]
    assert rate_excess(samples(*[RATE] * 4, 1.24 * RATE, *[RATE] * 4), fell) == {}
    rose = [{**fell[0], "delay_s": 0.01}, {**fell[1], "delay_s": 0.25}]
    for states in (fell[:1], rose):
        assert rate_excess(samples(*[RATE] * 4, 1.24 * RATE, *[RATE] * 4), states).keys() == {"a->b"}


def test_a_link_that_was_removed_has_no_rate_from_then_on() -> None:
    removed = {"at_s": 4.0, "link": "a->b", "removed": True}
    assert rate_excess(samples(*[RATE] * 4, *[0.0] * 5), [state(-60, RATE), removed]) == {}


def test_a_link_that_was_made_again_counts_from_zero() -> None:
    made = samples(*[RATE] * 8)
    for sample in made[4:]:
        sample["bytes"]["a->b"] -= 4 * RATE / 8
    assert rate_excess(made, [state(-60, RATE)]) == {}


def test_a_link_that_came_later_counts_from_its_first_sample() -> None:
    made = samples(*[RATE] * 8)
    for sample in made[:4]:
        sample["bytes"].clear()
    assert rate_excess(made, [state(3.5, RATE)]) == {}


class Moment(float):
    """A time that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Moment.compared += 1
        return float(self) < float(other)

    def __gt__(self, other: float) -> bool:
        return Moment(other) < self

    def __le__(self, other: float) -> bool:
        return not self > other

    def __ge__(self, other: float) -> bool:
        return not self < other


def test_a_long_run_takes_time_by_its_length_alone() -> None:
    """An hour has 3,600 samples and 36,000 rows of each trace: looking at all rows for each sample took minutes."""
    seconds, Moment.compared = 200, 0
    rows = [state(Moment(at_s / 10), RATE) for at_s in range(-10, 10 * seconds)]
    assert rate_excess(samples(*[RATE] * seconds), rows) == {}
    assert Moment.compared < 5 * len(rows)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(1e5, 1e7)), min_size=1, max_size=12),
    st.lists(st.floats(0, 3e7), min_size=WINDOW, max_size=12),
)
def test_a_window_is_compared_with_the_highest_rate_in_force(
    rows: list[tuple[float, float]], bits: list[float]
) -> None:
    rows.sort(key=lambda row: row[0])
    made, excess = samples(*bits), 0.0
    for first, last in zip(made, made[WINDOW:], strict=False):
        began_s = first["at_s"] - WINDOW
        rates = [rate for at_s, rate in rows if at_s <= began_s][-1:]
        rates += [rate for at_s, rate in rows if began_s < at_s <= last["at_s"]]
        allowed, passed = max(rates, default=0.0) * WINDOW, 8 * (last["bytes"]["a->b"] - first["bytes"]["a->b"])
        if rates and passed > allowed * (1 + LOOK_S / WINDOW) + SUPER_PACKET_BITS:
            excess = max(excess, passed / allowed - 1)
    assert rate_excess(made, [state(*row) for row in rows]) == ({"a->b": excess} if excess else {})


def look(arrived: int, before: int, after: int, link: str = "a->b") -> CounterReading:
    return CounterReading({link: before}, {link: arrived}, {link: after})


PACKET = SUPER_PACKET_BITS // 8


def test_what_the_shaper_let_through_did_not_go_around_it() -> None:
    assert bypassed_bytes(look(0, 0, 0), look(10**6, 10**6, 10**6)) == {}
    assert bypassed_bytes(look(0, 0, 0), look(10**6, 9 * 10**5, 10**6)) == {}, "let through while the kernel was asked"
    assert bypassed_bytes(look(0, 0, 0), look(10**6, 11 * 10**5, 11 * 10**5)) == {}, (
        "super-packets are counted by their frames"
    )


def test_what_arrives_beside_the_shaper_went_around_it() -> None:
    assert bypassed_bytes(look(0, 0, 0), look(10**6 + PACKET, 10**6, 10**6)) == {}, "one that is let through just now"
    assert bypassed_bytes(look(0, 0, 0), look(10**6 + PACKET + 1, 10**6, 10**6)) == {"a->b": PACKET + 1}


def test_a_link_made_again_has_no_past() -> None:
    assert bypassed_bytes(look(10**9, 10**9, 10**9), look(10**6, 0, 0)) == {}, "both counts began again"
    assert bypassed_bytes(look(0, 10**9, 10**9), look(10**6, 0, 0)) == {}, "its shaper's did"
    assert bypassed_bytes(look(0, 0, 0), look(10**6, 0, 0, link="b->a")) == {}, "it was not there before"


def test_a_clock_that_is_set_meanwhile_makes_no_link_too_fast() -> None:
    """By 2 s: what arrives in 3 s then seems to have come in one, and a window to have ended before it began."""
    for step_s in (-2.0, -4.0, 2.0):
        made = samples(*[RATE] * 12)
        for number, sample in enumerate(made):
            sample["clock_s"] = 100.0 + sample["at_s"]
            sample["at_s"] += step_s if number >= 6 else 0.0
        assert rate_excess(made, [state(-60, RATE)]) == {}
