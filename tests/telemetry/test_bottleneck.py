from __future__ import annotations

import random

import numpy as np
import pytest

from testbed.planning.fair import Fair
from testbed.protocol import TICK_S, Tick
from testbed.telemetry.bottleneck import FILLED_TICKS, Pair, bottlenecks
from testbed.telemetry.estimate import quantile

pytestmark = pytest.mark.unit


def fair_ticks(
    routes: dict[Pair, tuple[str, ...]], capacities: dict[str, float], seed: int = 1, ticks: int = 400
) -> dict[Pair, tuple[Tick, ...]]:
    """Edges that are on and off for a while each, and share capacities (bytes/s) max-min fairly."""
    chance = random.Random(seed)
    names = list(capacities)
    pairs = list(routes)
    fair = Fair(list(capacities.values()), [[names.index(name) for name in routes[pair]] for pair in pairs])
    on = dict.fromkeys(pairs, True)
    found: dict[Pair, list[Tick]] = {pair: [] for pair in pairs}
    for number in range(ticks):
        if number % 10 == 0:
            on = {pair: chance.random() < 0.6 for pair in pairs}
        going = np.array([i for i, pair in enumerate(pairs) if on[pair]], dtype=np.int64)
        for i, rate in zip(going, fair.rates(going), strict=True):
            carried = round(rate * TICK_S * chance.uniform(0.95, 1.05))
            found[pairs[i]].append(Tick(number, carried, round(1e3 * TICK_S)))
    return {pair: tuple(its) for pair, its in found.items()}


def mbps(rates: list[float]) -> float:
    return quantile(rates) / 1e6 * 1448 / 1514 / 8


def test_of_links_that_carry_the_same_the_slowest_is_named_and_the_others_carry_at_least_that() -> None:
    routes = {("a", "b"): ("up", "wan", "down")}
    ticks = fair_ticks(routes, {"up": 100e6, "wan": 3e6, "down": 100e6})
    held, passed = bottlenecks(ticks, routes, {"up": 800e6, "wan": 40e6, "down": 800e6})
    assert held.keys() == {"wan"} and passed.keys() == {"up", "down"}
    assert mbps(held["wan"]) == pytest.approx(3, rel=0.05) == pytest.approx(mbps(passed["up"]), rel=0.05)


def test_a_shared_link_with_room_to_spare_is_not_named() -> None:
    routes = {("a", x): ("up", f"a->{x}") for x in "bcd"}
    ticks = fair_ticks(routes, {"up": 100e6, "a->b": 2e6, "a->c": 3e6, "a->d": 0.5e6})
    believed = {"up": 8e6, "a->b": 24e6, "a->c": 24e6, "a->d": 24e6}  # wrong on purpose
    held, _ = bottlenecks(ticks, routes, believed)
    assert held.keys() == {"a->b", "a->c", "a->d"}
    assert mbps(held["a->d"]) == pytest.approx(0.5, rel=0.05)


def test_a_full_shared_link_is_named_and_what_all_carry_over_it_is_counted() -> None:
    routes = {("a", x): ("up", f"a->{x}") for x in "bcd"}
    ticks = fair_ticks(routes, {"up": 4e6, "a->b": 50e6, "a->c": 60e6, "a->d": 70e6})
    held, _ = bottlenecks(ticks, routes, {"up": 800e6, "a->b": 40e6, "a->c": 40e6, "a->d": 40e6})
    assert held.keys() == {"up"}
    assert mbps(held["up"]) == pytest.approx(4, rel=0.05)


def test_a_link_in_the_middle_that_two_edges_share() -> None:
    routes = {("a", "d"): ("a->b", "b->c", "c->d"), ("b", "e"): ("b->c", "c->e"), ("a", "x"): ("a->b", "b->x")}
    capacities = {"a->b": 20e6, "b->c": 2e6, "c->d": 9e6, "c->e": 9e6, "b->x": 5e6}
    ticks = fair_ticks(routes, capacities)
    held, _ = bottlenecks(ticks, routes, dict.fromkeys(capacities, 100e6))
    assert mbps(held["b->c"]) == pytest.approx(2, rel=0.05)
    assert mbps(held["b->x"]) == pytest.approx(5, rel=0.05)
    assert "c->d" not in held and "c->e" not in held


def test_an_edge_that_filled_its_path_for_too_short_says_only_what_it_carries_at_least() -> None:
    full = round(1e3 * TICK_S)
    other = tuple(Tick(i, 1_000, 0) for i in range(60))  # the round goes on
    for busy, names in ((5, False), (FILLED_TICKS + 1, True)):
        burst = tuple(Tick(i, 20_000, full) for i in range(busy))
        ticks = {("a", "b"): burst, ("a", "c"): other}
        routes = {("a", "b"): ("a->b",), ("a", "c"): ("a->c",)}
        held, passed = bottlenecks(ticks, routes, {"a->b": 40e6, "a->c": 40e6})
        assert (held.keys(), passed.keys()) == (({"a->b"}, set()) if names else (set(), {"a->b"}))
    brief = tuple(Tick(i, 80_000, full) for i in range(4))  # three ticks after the first: a burst of acknowledgements
    assert bottlenecks({("a", "b"): brief, ("a", "c"): other}, routes, {"a->b": 1e6, "a->c": 1e6}) == ({}, {})


def test_a_queue_holds_an_edge_up_where_the_way_back_is_clear() -> None:
    full = round(1e3 * TICK_S)
    few = tuple(Tick(i, 6_000, 0, full) for i in range(40))  # nothing unsent, at about 1 Mbit/s
    routes = {("a", "b"): ("a->b",), ("b", "a"): ("b->a",)}
    believed = {"a->b": 10e6, "b->a": 4e6}
    for sent_back, names in ((6_000, True), (20_000, False)):
        ticks = {("a", "b"): few, ("b", "a"): tuple(Tick(i, sent_back, 0) for i in range(40))}
        held, passed = bottlenecks(ticks, routes, believed)
        assert held.keys() == ({"a->b"} if names else set()) and not passed
    assert bottlenecks({("a", "b"): few}, routes, believed)[0].keys() == {"a->b"}  # nothing at all came back
    assert bottlenecks({("a", "b"): few}, {("a", "b"): ("a->b",)}, {"a->b": 10e6})[0].keys() == {"a->b"}


def test_in_a_short_round_half_of_it_is_long_enough() -> None:
    ticks = {("a", "b"): tuple(Tick(i, 20_000, round(1e3 * TICK_S)) for i in range(6))}
    held, _ = bottlenecks(ticks, {("a", "b"): ("a->b",)}, {"a->b": 40e6})
    assert held.keys() == {"a->b"}


def test_edges_that_were_never_busy_for_long_say_nothing() -> None:
    routes = {("a", "b"): ("up", "wan", "down")}
    lone = {("a", "b"): tuple(Tick(3 * i, 10_000, round(1e3 * TICK_S)) for i in range(50))}
    assert bottlenecks(lone, routes, {"up": 1.0, "wan": 1.0, "down": 1.0}) == ({}, {})
