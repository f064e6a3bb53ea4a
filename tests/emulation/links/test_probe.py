"""The conclusions from a measurement's packets: the pure part. Measurements of real links are in test_network."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.errors import EmulationError
from testbed.emulation.links import probe
from testbed.link import MTU_FRAME_BYTES, GilbertElliott, LinkState
from testbed.spec.units import MOST_DELAY_S

pytestmark = pytest.mark.pure

FAST = LinkState(100e6, 0.010)
SLOW = LinkState(64e3, 0.010)


def test_a_slow_link_may_take_its_time_for_a_ping_or_not() -> None:
    service_s = 2 * 98 * 8 / 64e3  # 24.5 ms
    assert probe.round_trip_error(0.020, SLOW, SLOW) == 0
    assert probe.round_trip_error(0.020 + service_s, SLOW, SLOW) == pytest.approx(0)
    assert probe.round_trip_error(0.021 + service_s, SLOW, SLOW) == pytest.approx(0.001)
    assert probe.round_trip_error(0.019, SLOW, SLOW) == pytest.approx(-0.001)


def test_jitter_may_move_the_mean_of_a_few_but_not_far() -> None:
    shaky = LinkState(100e6, 0.010, jitter_s=0.005)
    assert probe.round_trip_error(0.0225, shaky, FAST) == 0
    assert probe.round_trip_error(0.0175, FAST, shaky) == 0
    assert probe.round_trip_error(0.025, shaky, shaky) > 0
    assert probe.round_trip_error(0.0225, FAST, FAST) == pytest.approx(0.0025, abs=1e-4)


def test_the_mean_of_fewer_answers_may_be_further_off() -> None:
    shaky = LinkState(100e6, 0.010, jitter_s=0.005)
    assert probe.round_trip_error(0.026, shaky, shaky) > 0
    assert probe.round_trip_error(0.026, shaky, shaky, answers=2) == 0


def test_one_of_many_links_may_be_further_off() -> None:
    shaky = LinkState(100e6, 0.010, jitter_s=0.005)
    assert probe.round_trip_error(0.0245, shaky, shaky) > 0
    assert probe.round_trip_error(0.0245, shaky, shaky, chance=probe.CHANCE / 40) == 0


def test_jitter_beyond_the_delay_lengthens_the_mean() -> None:
    """A packet that would leave before it came leaves at once: of ±20 ms around 0 ms, the mean is 5 ms."""
    assert probe.mean_delay_s(LinkState(100e6, 0.0, jitter_s=0.020)) == pytest.approx(0.005)
    assert probe.mean_delay_s(LinkState(100e6, 0.020, jitter_s=0.020)) == 0.020
    assert probe.mean_delay_s(FAST) == 0.010
    shaky = LinkState(100e6, 0.0, jitter_s=0.020)
    assert probe.round_trip_error(0.024, shaky, shaky) == 0


@given(st.tuples(*[st.floats(0, MOST_DELAY_S)] * 4))
def test_a_ping_waits_for_its_answer_over_the_longest_links(seconds: tuple[float, float, float, float]) -> None:
    there, back = (LinkState(1e6, delay_s, jitter_s=jitter_s) for delay_s, jitter_s in (seconds[:2], seconds[2:]))
    assert probe.answer_s(there, back) >= sum(seconds) + probe.PATIENCE_S - 1e-9
    assert probe.answer_s(FAST, FAST) == 4


@given(st.floats(1e4, 1e11))
def test_what_is_counted_resolves_the_rate_or_takes_as_long_as_it_may(rate: float) -> None:
    window = probe.window_s(LinkState(rate, 0.01))
    assert probe.MIN_WINDOW_S <= window <= probe.MAX_WINDOW_S
    packets = rate * window / 8 / MTU_FRAME_BYTES
    assert packets >= probe.COUNTED_PACKETS * (1 - 1e-9) or window == probe.MAX_WINDOW_S


@given(st.lists(st.tuples(st.floats(1e4, 1e9), st.floats(0, 0.99)), max_size=30))
def test_each_link_is_flooded_once_and_no_more_at_a_time_than_a_small_host_carries(
    links: list[tuple[float, float]],
) -> None:
    states = {f"a->b{i}": LinkState(rate, 0.01, loss=loss) for i, (rate, loss) in enumerate(links)}
    batches = list(probe._batches(states))
    assert sorted(name for batch in batches for name in batch) == sorted(states)
    for batch in batches:
        needed = sum(state.rate_bps / (1 - state.loss) for state in batch.values())
        assert len(batch) == 1 or needed <= probe.FLOOD_TOTAL_BPS * (1 + 1e-9)


@given(st.floats(0, 0.2), st.floats(0, 1), st.floats(0, 0.2), st.floats(0, 1))
def test_a_probe_that_is_paused_during_a_look_takes_no_rate_for_wrong(
    first_s: float, first: float, last_s: float, last: float
) -> None:
    """A link at its exact rate, counted at any moment of looks that took so long."""

    def look(began: float, took_s: float, moment: float) -> probe.FloodLook:
        arrived = round(FAST.rate_bps / 8 * (began + moment * took_s))
        return probe.FloodLook(began + took_s / 2, took_s, arrived, packets_sent=0, dry_s=0.0)

    error, resolution = probe.rate_error(FAST, look(1.0, first_s, first), look(1.75, last_s, last), MTU_FRAME_BYTES)
    assert error is not None
    assert abs(error) <= resolution


def test_a_rate_that_is_off_shows_between_quick_looks() -> None:
    before = probe.FloodLook(1.0, 1e-4, 0, packets_sent=0, dry_s=0.0)
    after = probe.FloodLook(1.75, 1e-4, round(0.97 * 0.75 * FAST.rate_bps / 8), packets_sent=0, dry_s=0.0)
    error, resolution = probe.rate_error(FAST, before, after, MTU_FRAME_BYTES)
    assert error == pytest.approx(-0.03, abs=1e-6)
    assert resolution < 0.001


def test_a_flood_resolves_one_packet_of_its_own_size() -> None:
    """Over a tunnel between hosts, packets are smaller than a full frame: 1,464 of 8,000 bytes, and not 1,514."""
    flood = probe._Flood.__new__(probe._Flood)
    flood.state, flood._frame_bytes, flood._arrived = SLOW, 1464, 0
    looks = [probe.FloodLook(at, 0.0, bytes_arrived) for at, bytes_arrived in ((1.0, 0), (2.0, 8000), (3.0, 8000))]
    assert flood.judge(*looks).resolution == pytest.approx(1464 / 8000)


def pinged(states: dict[str, LinkState], status: int, said: str) -> dict[str, float]:
    """Return the errors of round trips for pings that end with this status and text."""
    process = SimpleNamespace(returncode=status, communicate=lambda: (said.encode(), None))
    router = SimpleNamespace(popen=lambda *_, **__: process)
    network = SimpleNamespace(router=lambda _: router, addressing=SimpleNamespace(next_hop=lambda *_: "10.0.0.1"))
    return probe.round_trip_errors(network, states, states)  # type: ignore[arg-type]


def test_a_missing_ping_is_no_silence_of_a_link() -> None:
    with pytest.raises(EmulationError, match="iputils-ping"):
        pinged({"a->b": FAST, "b->a": FAST}, 127, "sh: 1: exec: ping: not found\n")


def test_the_answers_of_a_link_that_loses_packets_are_counted() -> None:
    said = (
        "8 packets transmitted, 2 received, 75% packet loss, time 711ms\nrtt min/avg/max/mdev = 22.0/26.0/30.0/4.0 ms"
    )
    shaky = LinkState(100e6, 0.010, jitter_s=0.005, loss=0.5)
    assert pinged({"a->b": shaky, "b->a": shaky}, 0, said) == {"a->b": 0.0, "b->a": 0.0}
    (error,) = set(pinged({"a->b": shaky, "b->a": shaky}, 0, said.replace("2 received", "8 received")).values())
    assert error > 0.001


def bursty(p: float, r: float) -> LinkState:
    chain = GilbertElliott(p, r)
    return LinkState(3.2e6, 0.02, loss=chain.mean, bursts=chain)


def test_silence_in_a_burst_of_losses_proves_nothing() -> None:
    """A third of all moments is in a burst of a hundred packets, which takes eight pings as a rule."""
    long, short = bursty(0.005, 0.01), bursty(0.01, 0.3)
    assert probe.lost_in_a_row(GilbertElliott(0.005, 0.01), 1) == pytest.approx(1 / 3)
    assert probe.silence(long, FAST) == pytest.approx(0.99**7 / 3)
    assert probe.silence(FAST, long) > probe.CHANCE > probe.silence(short, FAST)
    silent = "8 packets transmitted, 0 received, 100% packet loss, time 711ms"
    assert pinged({"a->b": long, "b->a": FAST}, 1, silent) == {}
    assert pinged({"a->b": FAST, "b->a": short}, 1, silent) == {"a->b": inf, "b->a": inf}


@pytest.mark.parametrize(("p", "r", "known"), [(0.005, 0.01, False), (0.01, 0.3, True), (0.01, 1.0, True)])
def test_the_rate_of_a_link_whose_losses_may_empty_its_queue_is_unknown(p: float, r: float, known: bool) -> None:
    before = probe.FloodLook(1.0, 1e-4, 0, packets_sent=0, dry_s=0.0)
    after = probe.FloodLook(2.0, 1e-4, 400_000, packets_sent=0, dry_s=0.0)
    error, _ = probe.rate_error(bursty(p, r), before, after, MTU_FRAME_BYTES)
    assert (error is not None) == known
