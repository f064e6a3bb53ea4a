"""Samples of links from trains, and the estimates that are made of them."""

from __future__ import annotations

import random
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.planning.events import max_min
from testbed.protocol import Train
from testbed.telemetry.bottleneck import FRAME_BITS, Carried, Pair, Sample, passed_bps, samples
from testbed.telemetry.estimate import Estimate, RateEstimator

WIRE = 8 * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES

trains = st.builds(Train, st.floats(1, 100), st.floats(0.001, 2), st.integers(1, 10**6))


@given(st.lists(trains, max_size=20))
def test_what_was_carried_grows_from_nothing_to_all_of_it(its: list[Train]) -> None:
    carried = Carried(its).by(np.linspace(0, 200, 500))
    assert carried[0] == 0 and carried[-1] == sum(train.bytes for train in its)
    assert np.all(np.diff(carried) >= 0)


def test_bytes_come_evenly_within_a_train_and_not_between_two() -> None:
    carried = Carried([Train(4.0, 1.0, 500), Train(1.0, 2.0, 1000)])
    assert carried.by(np.array([1.0, 2.0, 3.0, 3.9, 4.5, 6.0])) == pytest.approx([0, 500, 1000, 1000, 1250, 1500])


@given(st.floats(1, 100), st.floats(0.001, 2), st.integers(1, 10**6))
def test_a_link_that_one_train_passes_carries_that_train_in_frames(began_s: float, seconds: float, count: int) -> None:
    its = {("a", "b"): [Train(began_s, seconds, count)]}
    found = passed_bps(its, {("a", "b"): ("a->b",)}, {})
    assert found[("a", "b"), "a->b"] == pytest.approx([count / seconds * WIRE])
    assert FRAME_BITS == WIRE


def test_what_passed_a_shared_link_at_the_same_time_counts_for_both_by_when_it_passed_there() -> None:
    """Both trains pass a->x from 10 to 11 s; one arrives at b 20 ms later, the other at c 120 ms later."""
    its = {("a", "b"): [Train(10.02, 1.0, 1000)], ("a", "c"): [Train(10.12, 1.0, 500)]}
    routes = {("a", "b"): ("a->x", "x->b"), ("a", "c"): ("a->x", "x->c")}
    found = passed_bps(its, routes, {"a->x": 0.3, "x->b": 0.02, "x->c": 0.12})
    assert found[("a", "b"), "a->x"] == found[("a", "c"), "a->x"] == pytest.approx([1500 * WIRE])
    assert found[("a", "b"), "x->b"] == pytest.approx([1000 * WIRE])
    assert found[("a", "c"), "x->c"] == pytest.approx([500 * WIRE])


def test_of_a_train_that_another_one_meets_half_way_half_counts() -> None:
    its = {("a", "b"): [Train(10.0, 1.0, 1000)], ("a", "c"): [Train(10.5, 1.0, 1000)]}
    found = passed_bps(its, {("a", "b"): ("up",), ("a", "c"): ("up",)}, {})
    assert found[("a", "b"), "up"] == pytest.approx([1500 * WIRE])


def test_edges_without_trains_have_no_rates() -> None:
    assert passed_bps({("a", "b"): []}, {}, {}) == {}


pytestmark = pytest.mark.pure

#: The seconds of a train, and of a round trip.
TRAIN_S = 0.1
RTT_S = 0.2
TRIPS = {("a", "b"): RTT_S, ("a", "c"): RTT_S}


def fair_trains(
    routes: dict[Pair, tuple[str, ...]], capacities: dict[str, float], seed: int = 1, count: int = 200
) -> dict[Pair, list[Train]]:
    """Return the trains of edges that send and pause in turn and share capacities (bytes/s) max-min fairly."""
    chance = random.Random(seed)
    pairs = list(routes)
    on = dict.fromkeys(pairs, True)
    found: dict[Pair, list[Train]] = {pair: [] for pair in pairs}
    for number in range(count):
        if number % 10 == 0:
            on = {pair: chance.random() < 0.6 for pair in pairs}
        for pair, rate in max_min({pair: routes[pair] for pair in pairs if on[pair]}, capacities).items():
            carried = max(round(rate * TRAIN_S * chance.uniform(0.97, 1.03)), 1)
            found[pair].append(Train(1 + number * TRAIN_S, TRAIN_S, carried))
    return found


def seen(
    routes: dict[Pair, tuple[str, ...]], capacities: dict[str, float], believed: dict[str, float]
) -> dict[str, list[Sample]]:
    return samples(fair_trains(routes, capacities), routes, {}, believed, dict.fromkeys(routes, RTT_S))


def full(its: list[Sample]) -> float:
    """Return the rates of samples of a full link, in bytes of payload per second."""
    return median(sample.rate_bps for sample in its if sample.full) / FRAME_BITS


def often(its: list[Sample]) -> bool:
    """Return whether a link was full in more than exceptional samples."""
    return sum(sample.full for sample in its) > 0.1 * len(its)


def test_of_links_that_carry_the_same_the_slowest_is_full_and_the_others_carry_at_least_that() -> None:
    its = seen(
        {("a", "b"): ("up", "wan", "down")},
        {"up": 100e6, "wan": 3e6, "down": 100e6},
        {"up": 800e6, "wan": 40e6, "down": 800e6},
    )
    assert full(its["wan"]) == pytest.approx(3e6, rel=0.03)
    assert not any(sample.full for link in ("up", "down") for sample in its[link])
    assert [sample.rate_bps for sample in its["up"]] == [sample.rate_bps for sample in its["wan"]]


def test_a_shared_link_with_room_to_spare_is_not_full() -> None:
    capacities = {"up": 100e6, "a->b": 2e6, "a->c": 3e6, "a->d": 0.5e6}
    believed = {"up": 8e6, "a->b": 20e6, "a->c": 20e6, "a->d": 4e6}  # "up" at much less than it carries
    its = seen({("a", x): ("up", f"a->{x}") for x in "bcd"}, capacities, believed)
    assert not often(its["up"])
    for link in ("a->b", "a->c", "a->d"):
        assert full(its[link]) == pytest.approx(capacities[link], rel=0.03)


def test_a_full_shared_link_is_told_and_what_all_carry_over_it_is_counted() -> None:
    capacities = {"up": 4e6, "a->b": 50e6, "a->c": 60e6, "a->d": 70e6}
    its = seen(
        {("a", x): ("up", f"a->{x}") for x in "bcd"}, capacities, {"up": 800e6, **dict.fromkeys(capacities, 40e6)}
    )
    assert full(its["up"]) == pytest.approx(4e6, rel=0.03)
    assert not any(often(its[link]) for link in ("a->b", "a->c", "a->d"))


def test_a_link_in_the_middle_that_two_edges_share() -> None:
    routes = {("a", "d"): ("a->b", "b->c", "c->d"), ("b", "e"): ("b->c", "c->e"), ("a", "x"): ("a->b", "b->x")}
    capacities = {"a->b": 20e6, "b->c": 2e6, "c->d": 9e6, "c->e": 9e6, "b->x": 5e6}
    its = seen(routes, capacities, dict.fromkeys(capacities, 100e6))
    assert full(its["b->c"]) == pytest.approx(2e6, rel=0.03)
    assert full(its["b->x"]) == pytest.approx(5e6, rel=0.03)
    assert not often(its["c->d"]) and not often(its["c->e"])


@pytest.mark.parametrize("streams", [1, 2, 8])
def test_a_pair_s_connections_fill_a_link_together(streams: int) -> None:
    """Trains of all connections come at the same time, each with its part of the link's rate."""
    its = [Train(n * 0.1 + i * 0.003, 0.1, 250_000 // streams) for n in range(20) for i in range(streams)]
    (rates,) = passed_bps({("a", "b"): its}, {("a", "b"): ("link",)}, {}).values()
    assert rates[2 * streams : -2 * streams] == pytest.approx(20e6 * FRAME_BITS / 8, rel=0.02)


def test_a_trusted_link_is_full_only_where_a_route_has_no_other() -> None:
    trains = {("a", "b"): [Train(1.0, 0.1, 100_000)], ("a", "c"): [Train(5.0, 0.1, 100_000)]}
    routes = {("a", "b"): ("up", "a->b", "down"), ("a", "c"): ("up",)}
    its = samples(trains, routes, {}, {"up": 1e6, "down": 1e6, "a->b": 1e9}, TRIPS, ("up", "down"))
    assert [sample.full for sample in its["up"]] == [False, True]
    assert [sample.full for sample in its["a->b"]] == [True] and [sample.full for sample in its["down"]] == [False]


@pytest.mark.parametrize("believed_bps", [6e6, 10e6])
def test_behind_an_egress_that_is_believed_too_slow_a_link_with_room_is_not_full(believed_bps: float) -> None:
    """The egress carries 12 Mbit/s, and 15 beside another edge; trains of 12 passed for ones of a full hub link."""
    routes: dict[Pair, tuple[str, ...]] = {("a", x): ("egress", f"hub->{x}") for x in "bc"}
    alone = [Train(1 + n * TRAIN_S, TRAIN_S, 150_000) for n in range(20)]
    trains = {("a", "b"): alone, ("a", "c"): [its._replace(bytes=37_500) for its in alone[::2]]}
    believed = {"egress": believed_bps, "hub->b": 50e6, "hub->c": 50e6}
    found = samples(trains, routes, {}, believed, dict.fromkeys(routes, RTT_S))
    assert not any(sample.full for link in ("hub->b", "hub->c") for sample in found[link])
    assert often(found["egress"])


def test_a_link_that_fell_is_full_behind_an_egress_that_is_believed_too_slow_for_others() -> None:
    """The edges of the egress together exceed its estimate, and one of them passes a link that fell a little."""
    routes: dict[Pair, tuple[str, ...]] = {("a", x): ("egress", f"hub->{x}") for x in "bc"}
    slow = [Train(1 + n * TRAIN_S, TRAIN_S, 80_000) for n in range(20)]
    trains = {("a", "b"): slow, ("a", "c"): [its._replace(bytes=120_000) for its in slow]}
    believed = {"egress": 10e6, "hub->b": 8e6, "hub->c": 50e6}
    found = samples(trains, routes, {}, believed, dict.fromkeys(routes, RTT_S))
    assert often(found["hub->b"])
    assert not any(sample.full for sample in found["hub->c"])


@pytest.mark.parametrize(("seconds", "told"), [(0.01, False), (0.1, True)])
def test_a_late_stamp_in_a_short_train_proves_no_room(seconds: float, told: bool) -> None:
    """Stamps are up to 3 ms late: a train of 10 ms that came 1.3 times as fast does not speak against a full link."""
    routes: dict[Pair, tuple[str, ...]] = {("a", "b"): ("egress", "hub->b")}
    rates = [1.3e6 if n % 2 else 1e6 for n in range(20)]
    trains = {("a", "b"): [Train(1 + n * seconds, seconds, round(rate * seconds)) for n, rate in enumerate(rates)]}
    believed = {"egress": 1e6 * FRAME_BITS, "hub->b": 1.1e6 * FRAME_BITS}
    found = samples(trains, routes, {}, believed, {("a", "b"): RTT_S}, trusted=("hub->b",))
    slower = [sample.full for sample, rate in zip(found["egress"], rates, strict=True) if rate == 1e6]
    assert any(slower) != told


@pytest.mark.parametrize(("allowed", "held_up"), [(0, False), (2_000_000, False), (1_100_000, True), (950_000, True)])
def test_a_train_that_tcp_held_up_says_what_links_carry_at_least(allowed: int, held_up: bool) -> None:
    its = samples(
        {("a", "b"): [Train(1.0, 0.1, 100_000, allowed, allowed)]}, {("a", "b"): ("a->b",)}, {}, {"a->b": 40e6}, TRIPS
    )
    assert its["a->b"] == [Sample(pytest.approx(1e6 * FRAME_BITS), 1.0, 0.1, 100_000, full=not held_up)]


def test_a_train_that_came_faster_than_tcp_s_pace_proves_no_queue() -> None:
    """The pace in a head is up to 1.25 times too low: trains of 24 and 30 Mbit/s both counted as full once."""
    its = [Train(at_s, 0.1, 100_000, let, let) for at_s, let in ((1.0, 800_000), (2.0, 500_000), (3.0, 1_000_000))]
    found = samples({("a", "b"): its}, {("a", "b"): ("a->b",)}, {}, {"a->b": 40e6}, TRIPS)["a->b"]
    assert not any(sample.full for sample in found)


def test_a_connection_that_has_only_begun_says_nothing_of_a_fall() -> None:
    """A probe over 10 Mbit/s and 225 ms was taken for 1.1 Mbit/s, while another connection had carried more."""
    before = {("a", "b"): [Train(95.0, 0.013, 17_376, 2_006_016, 2_006_016)]}
    came = [
        Train(100.0, 0.253, 31_856, 64_512, 165_888),
        Train(100.253, 0.372, 49_232, 64_512, 165_888),
        Train(100.625, 0.305, 115_840, 164_512, 365_568),
        Train(100.931, 0.265, 178_400, 266_240, 885_760),
    ]
    routes, believed, trips = {("a", "b"): ("a->b",)}, {"a->b": 10e6}, {("a", "b"): 0.225}
    for seen in range(1, 4):
        now, later = {("a", "b"): came[:seen]}, {("a", "b"): came[seen:]}
        found = samples(now, routes, {}, believed, trips, before=before, later=later)["a->b"]
        assert not any(sample.full for sample in found)
    assert not any(s.full for s in samples({("a", "b"): came[:2]}, routes, {}, believed, trips, before=before)["a->b"])


def test_nor_does_one_that_begins_again() -> None:
    """BBR lost its model of a path of 26 Mbit/s, and took 6 s to find it again."""
    before = {("a", "b"): [Train(95.0, 0.086, 275_000, 7_900_000, 7_900_000)]}
    rates = (70_000, 80_000, 110_000, 140_000, 200_000, 300_000, 400_000, 500_000, 640_000, 720_000)
    its = [Train(100 + 0.3 * number, 0.3, round(0.3 * rate), rate, rate) for number, rate in enumerate(rates)]
    found = samples({("a", "b"): its}, {("a", "b"): ("a->b",)}, {}, {"a->b": 26e6}, TRIPS, before=before)["a->b"]
    assert not any(sample.full for sample in found)


@pytest.mark.parametrize(("grew", "pause_s", "full"), [(1.0, 0.0, True), (1.3, 0.0, False), (1.0, 0.02, False)])
def test_at_tcp_s_pace_a_link_is_full_once_tcp_has_looked_for_more_in_vain(
    grew: float, pause_s: float, full: bool
) -> None:
    """This takes ten round trips without a pause in which TCP's pace does not grow."""
    count = round(12 * RTT_S / TRAIN_S)
    sizes = [round(100_000 * grew ** (number / count)) for number in range(count)]
    its = [by_tcp(1 + number * (TRAIN_S + pause_s), size) for number, size in enumerate(sizes)]
    found = samples({("a", "b"): its}, {("a", "b"): ("a->b",)}, {}, {"a->b": 40e6}, TRIPS)["a->b"]
    assert not any(sample.full for sample in found[: count // 2])
    assert found[-1].full == full


def by_tcp(began_s: float, size: int) -> Train:
    """Return a train that came at TCP's pace."""
    return Train(began_s, TRAIN_S, size, round(size / TRAIN_S), round(size / TRAIN_S))


@pytest.mark.parametrize(("grew", "pause_s", "full"), [(1.0, 0.0, True), (1.3, 0.0, False), (1.0, 0.02, False)])
def test_at_the_pace_that_tcp_took_from_a_full_link_the_link_is_still_full(
    grew: float, pause_s: float, full: bool
) -> None:
    """A link fell from 31 to 6.1 Mbit/s. One train came slowed; TCP sent the next ones at the new rate by itself."""
    fallen = Train(1, TRAIN_S, 100_000, 5_000_000, 5_000_000)
    its = [by_tcp(1 + (1 + n) * (TRAIN_S + pause_s), round(100_000 * grew)) for n in range(3)]
    found = samples({("a", "b"): [fallen, *its]}, {("a", "b"): ("a->b",)}, {}, {"a->b": 40e6}, TRIPS)["a->b"]
    assert [sample.full for sample in found[1:]] == [full] * 3


def test_what_comes_on_another_connection_meanwhile_is_no_pause() -> None:
    """Nor is a probe a pause, since it does not change TCP's search."""
    count = round(12 * RTT_S / TRAIN_S)
    its = [by_tcp(1 + number * TRAIN_S, 100_000) for number in range(count)]
    others = [
        by_tcp(1.2 * TRAIN_S + its[0].began_s, 10_000)._replace(seconds=TRAIN_S / 20),
        Train(its[count // 2].began_s + TRAIN_S / 3, TRAIN_S / 50, 30_000, round(1_500_000 / TRAIN_S)),
    ]
    assert [each.is_probe for each in others] == [False, True]
    trains = {("a", "b"): sorted([*its, *others])}
    found = samples(trains, {("a", "b"): ("a->b",)}, {}, {"a->b": 40e6}, TRIPS)["a->b"]
    assert found[-1].full


@pytest.mark.parametrize(("part", "full"), [(0.3, True), (0.6, True), (0.8, False), (1.0, False), (1.3, False)])
def test_a_probe_meets_a_full_link_if_it_comes_much_slower_than_it_left(part: float, full: bool) -> None:
    """The length of the probe and the earlier rate of the edge do not matter."""
    pace = 375_000
    before = {("a", "b"): [by_tcp(95.0, 20 * pace)]}
    seconds = 0.0437
    trains = {("a", "b"): [Train(100.0, seconds, round(part * pace * seconds), pace)]}
    trips = {("a", "b"): 0.001}
    found = samples(trains, {("a", "b"): ("a->b",)}, {}, {"a->b": 1e6}, trips, before=before)["a->b"]
    assert [sample.full for sample in found] == [full]


def test_a_probe_beside_the_edge_s_own_transfers_says_what_the_link_carries_at_least() -> None:
    """A probe over 30 Mbit/s came at 25.7 beside a round that took 4.8."""
    probe = Train(1.0, 0.014, 42_000, 11_000_000)
    beside = Train(0.9, 0.3, 300_000, 700_000, 700_000)
    for its, full in (([probe], True), ([beside, probe], False)):
        found = samples({("a", "b"): its}, {("a", "b"): ("a->b",)}, {}, {"a->b": 30e6}, TRIPS)["a->b"]
        assert found[-1].full == full


def test_a_probe_beside_the_edge_s_own_transfers_shows_that_the_link_fell() -> None:
    """A link stayed at 24 Mbit/s for 3.9 s after it fell to 8, since a round's transfer came beside each probe."""
    probe, beside = Train(1.0, 0.0369, 34_478, 8_999_624), Train(0.9, 0.5, 57_000, 436_000, 436_000)
    found = samples({("a", "b"): [beside, probe]}, {("a", "b"): ("a->b",)}, {}, {"a->b": 24e6}, TRIPS)["a->b"]
    both = 8 * (34_478 + 57_000 * 0.0369 / 0.5) / 0.0369
    assert found[-1].full and found[-1].rate_bps == pytest.approx(both * FRAME_BITS / 8)


@pytest.mark.parametrize(("times", "samples_of_it"), [(1.2, 1), (2.0, 0)])
def test_a_train_that_came_much_faster_than_tcp_let_it_go_says_nothing(times: float, samples_of_it: int) -> None:
    its = by_tcp(1.0, 100_000)._replace(seconds=TRAIN_S / times)
    found = samples({("a", "b"): [its]}, {("a", "b"): ("a->b",)}, {}, {"a->b": 40e6}, TRIPS)
    assert len(found.get("a->b", [])) == samples_of_it


# Estimates from samples


def estimates(
    trains: dict[Pair, list[Train]], routes: dict[Pair, tuple[str, ...]], believed_bps: dict[str, float]
) -> dict[str, Estimate]:
    """Return the known estimates after the last of the samples, which come once a second."""
    estimators = {link: RateEstimator(rate_bps) for link, rate_bps in believed_bps.items()}
    before: dict[Pair, list[Train]] = {}
    ends_s = max(train.began_s for its in trains.values() for train in its)
    for second in range(int(ends_s) + 1):
        now = {pair: [its for its in trains[pair] if int(its.began_s) == second] for pair in trains}
        for link, its in samples(now, routes, {}, believed_bps, dict.fromkeys(routes, RTT_S), before=before).items():
            estimators[link].add(its)
        before = now
    found = {link: estimator.estimate(ends_s) for link, estimator in estimators.items()}
    return {link: estimate for link, estimate in found.items() if estimate is not None and estimate.known}


def test_edges_that_share_an_egress_and_send_at_once_are_one_measurement_of_it() -> None:
    """No link after the egress is estimated at only its share of it."""
    routes: dict[Pair, tuple[str, ...]] = {("a", x): ("egress", f"hub->{x}") for x in "bcd"}
    capacities = {"egress": 2.5e6, "hub->b": 3e6, "hub->c": 4e6, "hub->d": 5e6}
    believed = {link: FRAME_BITS * rate for link, rate in capacities.items()}
    found = estimates(fair_trains(routes, capacities), routes, believed)
    assert found["egress"].rate_bps / FRAME_BITS == pytest.approx(2.5e6, rel=0.03)
    for link in found.keys() - {"egress"}:
        assert found[link].rate_bps >= 0.95 * believed[link]


def test_no_link_of_100_is_estimated_at_what_an_egress_of_20_lets_through() -> None:
    """An edge stays at its share for a while after the other paused: the egress then carries less than its rate."""
    routes: dict[Pair, tuple[str, ...]] = {("a", x): ("egress", f"hub->{x}", x) for x in "bc"}
    half = round(20e6 / 8 / 2)
    both = [Train(1 + 0.4 * number, 0.2, half // 5) for number in range(25)]
    alone = [its._replace(began_s=its.began_s + 0.2) for its in both]
    pausing = [its._replace(seconds=0.1, bytes=half // 10) for its in alone]
    trains = {("a", "b"): sorted([*both, *alone]), ("a", "c"): sorted([*both, *pausing])}
    believed = {"egress": 20e6 * FRAME_BITS / 8, **dict.fromkeys(("hub->b", "hub->c", "b", "c"), 100e6)}
    found = estimates(trains, routes, believed)
    assert found.keys() == {"egress"}
    assert found["egress"].rate_bps == pytest.approx(believed["egress"], rel=0.03)


@pytest.mark.parametrize("part", [0.2, 0.5])
def test_a_link_that_fell_behind_an_egress_is_estimated_while_it_is_used_alone(part: float) -> None:
    """Another edge fills the egress for three of eight trains."""
    routes: dict[Pair, tuple[str, ...]] = {("a", x): ("egress", f"hub->{x}") for x in "bc"}
    whole = 2.5e6
    slow = [Train(1 + number * TRAIN_S, TRAIN_S, round(part * whole * TRAIN_S)) for number in range(40)]
    rest = [its._replace(bytes=round((1 - part) * whole * TRAIN_S)) for n, its in enumerate(slow) if n % 8 < 3]
    believed = {"egress": whole * FRAME_BITS, "hub->b": 100e6, "hub->c": 100e6}
    found = estimates({("a", "b"): slow, ("a", "c"): rest}, routes, believed)
    rates = {link: estimate.rate_bps / FRAME_BITS for link, estimate in found.items()}
    assert rates == {"egress": pytest.approx(whole, rel=0.03), "hub->b": pytest.approx(part * whole, rel=0.03)}


def test_a_sender_that_is_the_limit_makes_no_estimate() -> None:
    trains = {("a", "b"): [by_tcp(1 + 0.3 * number, 50_000) for number in range(100)]}
    assert estimates(trains, {("a", "b"): ("a->b",)}, {"a->b": 40e6}) == {}


def test_short_trains_of_connections_that_begin_make_no_estimate() -> None:
    """Constant links were estimated at a half to an eighth of their rate: these came over 10 Mbit/s and 0.1 s."""
    came = [(0.502, 0.251, 66_608, 175_000, 412_500), (0.753, 0.179, 170_864, 175_000, 1_112_500)]
    trains = [Train(1 + 2 * n + at_s, *rest) for n in range(10) for at_s, *rest in came]
    assert estimates({("f", "e"): trains}, {("f", "e"): ("f->e",)}, {"f->e": 10e6}) == {}


@pytest.mark.parametrize("part", [0.125, 0.5])
def test_a_drop_within_a_long_round_is_known_within_a_second_of_trains(part: float) -> None:
    """Over a backlogged link a train ends each quarter of a second."""
    routes: dict[Pair, tuple[str, ...]] = {("a", "b"): ("a->b",)}
    trains = [Train(1 + 0.25 * n, 0.25, int((1.0 if n < 12 else part) * 500_000), 2_500_000) for n in range(16)]
    found = estimates({("a", "b"): [its._replace(burst_bytes_s=2_500_000) for its in trains]}, routes, {"a->b": 40e6})
    assert found["a->b"].rate_bps / FRAME_BITS == pytest.approx(part * 2e6, rel=0.03)
