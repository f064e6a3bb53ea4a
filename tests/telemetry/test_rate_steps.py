"""Steps of links' rates: which changes are steps, and when they began."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from testbed.telemetry.rate_steps import FACTOR, RateStep, RateSteps, recorded_steps

pytestmark = pytest.mark.pure

Rates = Mapping[str, Callable[[int], float | None]]


def steps_of(rates: Rates, used: Mapping[str, float], seconds: int = 90) -> list[RateStep]:
    """Return the steps of rates that are sampled once a second; `used` is the carried share of each link's rate."""
    finder, carried, found = RateSteps(), dict.fromkeys(rates, 0), []
    for second in range(seconds):
        now = {link: rate(second) for link, rate in rates.items()}
        for link, rate in now.items():
            carried[link] += int(used[link] * (rate or 0.0) / 8)
        found += finder.look(second, now, carried)
    return [*found, *finder.rest()]


def dropping(factor: float, seed: int = 1, noise: float = 0.1) -> Callable[[int], float]:
    draw = Random(seed)
    return lambda second: (30e6 / factor if 30 <= second < 60 else 30e6) * draw.uniform(1 - noise, 1 + noise)


def test_a_drop_on_a_used_link_and_its_end_are_told_with_their_rates() -> None:
    drop, rise = steps_of({"paris->tokyo": dropping(6)}, {"paris->tokyo": 0.3})
    assert [(drop.kind, drop.target, drop.at_s), (rise.kind, rise.target, rise.at_s)] == [
        ("drop", "paris->tokyo", 30),
        ("rise", "paris->tokyo", 60),
    ]
    assert drop.before_bps == pytest.approx(30e6, rel=0.1) and drop.after_bps == pytest.approx(5e6, rel=0.1)
    assert drop.to_event().keys() == {"at_s", "kind", "target", "before_bps", "after_bps"}
    assert "drop paris->tokyo" in str(drop)


def test_a_rate_of_a_gigabit_is_told_without_an_exponent() -> None:
    assert "1000 -> 94.1 Mbit/s" in str(RateStep(1.0, "a->b", 1e9, 94.13e6))


@pytest.mark.parametrize("factor", [1.3, 1.0])
def test_a_change_below_the_factor_is_not_told(factor: float) -> None:
    assert factor < FACTOR
    assert steps_of({"a->b": dropping(factor, noise=0.02)}, {"a->b": 0.3}) == []


def test_a_link_that_nothing_passes_is_not_told() -> None:
    assert steps_of({"a->b": dropping(6)}, {"a->b": 0.01}) == []


def test_both_directions_of_a_pair_are_one_step_also_where_one_is_noticed_a_look_later() -> None:
    later = dropping(6, seed=2)
    rates = {"tokyo->paris": dropping(6), "paris->tokyo": lambda second: later(second - 1)}
    found = steps_of(rates, dict.fromkeys(rates, 0.3))
    assert [(step.kind, step.target, step.at_s) for step in found] == [
        ("drop", "paris-tokyo", 30),
        ("rise", "paris-tokyo", 60),
    ]


def test_directions_that_step_otherwise_are_told_apart() -> None:
    rates = {"a->b": dropping(6), "b->a": dropping(1 / 6)}
    kinds = {(step.kind, step.target) for step in steps_of(rates, dict.fromkeys(rates, 0.3))}
    assert kinds == {("drop", "a->b"), ("rise", "a->b"), ("drop", "b->a"), ("rise", "b->a")}


def test_a_rate_that_always_goes_up_and_down_makes_no_flood() -> None:
    draw = Random(7)
    found = steps_of({"a->b": lambda _: draw.choice((3e6, 10e6, 30e6))}, {"a->b": 0.5}, seconds=600)
    assert len(found) <= 600 / 60


def test_a_link_that_was_down_or_changed_by_an_event_begins_again() -> None:
    moments, rates = [0.0, 30.0, 60.0], [30e6, None, 5e6]
    samples = [(float(second), {"a->b": second * 1_000_000}) for second in range(90)]
    assert recorded_steps({"a->b": (moments, rates)}, samples, []) == []
    changed = {"at_s": 30.0, "kind": "change", "target": "a->b"}
    track = {"a->b": ([0.0, 30.0], [30e6, 5e6])}
    assert recorded_steps(track, samples, [changed]) == []
    assert recorded_steps(track, samples, [{**changed, "target": "b->a"}]) != []
