"""Estimates of clocks that are known, and probes over a real network between two pretended hosts."""

from __future__ import annotations

import random
import socket
import struct
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.support.pretended import PretendedHosts
from testbed.emulation.network.namespace import inside
from testbed.scaleout.split.probes import PROBE_PORT, ClockSample, Echo, best_of_stretches, estimate, measure, path_mtu
from tests.measuring import judge

TOKEN = b"0123456789abcdef"


def samples(
    offset_s: float, drift: float, one_way_s: float, queue_s: float, seconds: float, seed: int = 1
) -> list[ClockSample]:
    """Return probes at 20 Hz of a clock that begins `offset_s` ahead and gains `drift`; each way has its own queue."""
    draw = random.Random(seed)
    found = []
    for number in range(int(seconds * 20)):
        sent = 1000.0 + number / 20
        there, back = (one_way_s + draw.expovariate(1 / queue_s) if queue_s else one_way_s for _ in range(2))
        theirs = sent + there
        theirs += offset_s + drift * (theirs - 1000.0)
        found.append(ClockSample(sent, theirs, theirs + 20e-6, sent + there + 20e-6 + back))
    return found


@pytest.mark.pure
@given(
    offset_s=st.floats(-1e5, 1e5),
    drift=st.sampled_from([0.0, 50e-6, -200e-6]),
    one_way_s=st.floats(1e-4, 0.05),
    queue_s=st.sampled_from([0.0, 1e-4, 2e-3]),
    seed=st.integers(0, 1000),
)
def test_an_offset_is_within_its_bound(
    offset_s: float, drift: float, one_way_s: float, queue_s: float, seed: int
) -> None:
    found = estimate(samples(offset_s, drift, one_way_s, queue_s, 10.0, seed))
    true_s = offset_s + drift * (found.at_s - 1000.0)
    assert abs(found.offset_s - true_s) <= found.offset_bound_s + 1e-6
    assert found.offset_bound_s <= found.bound_s


@pytest.mark.pure
def test_drift_is_told_from_none_in_a_quarter_of_a_minute() -> None:
    none = estimate(samples(5.0, 0.0, 2e-3, 1e-4, 16.0))
    fast = estimate(samples(5.0, 200e-6, 2e-3, 1e-4, 16.0))
    assert none.drift is not None
    assert fast.drift is not None
    assert abs(none.drift) < 10e-6
    assert fast.drift == pytest.approx(200e-6, abs=10e-6)
    assert fast.drift_error < 10e-6


@pytest.mark.pure
def test_nothing_is_said_of_drift_that_was_seen_for_too_short_a_time() -> None:
    assert estimate(samples(5.0, 1e-3, 1e-3, 0.0, 4.0)).drift is None


@pytest.mark.pure
def test_a_moment_is_carried_over_and_back() -> None:
    found = estimate(samples(-42.0, 100e-6, 1e-3, 0.0, 30.0))
    for moment in (990.0, 1030.0, 1100.0):
        assert found.ours(found.theirs(moment)) == pytest.approx(moment, abs=1e-6)
    assert found.theirs(1060.0) == pytest.approx(1060.0 - 42.0 + 60 * 100e-6, abs=1e-3)


@pytest.mark.pure
def test_of_a_stretch_the_quickest_exchange_is_believed() -> None:
    slow, quick = ClockSample(0.0, 0.5, 0.5, 1.0), ClockSample(0.1, 0.101, 0.101, 0.102)
    assert best_of_stretches([slow, quick]) == [quick]
    assert best_of_stretches([]) == []


@pytest.mark.pure
def test_wall_clocks_differ_by_what_monotonic_ones_do_and_what_is_between_them() -> None:
    one = ClockSample(10.0, 110.0, 110.0, 10.0, wall_ahead=-99.95)
    assert one.wall_offset_s == pytest.approx(0.05)


@pytest.mark.physics
def test_a_probe_with_the_token_learns_the_way_and_the_clock_and_others_get_no_answer() -> None:
    with PretendedHosts(["north", "south"], one_way_s=2e-3) as hosts:
        north, south = (hosts.namespaces[name].path for name in hosts.names)
        with Echo(hosts.addresses["south"], TOKEN, south):
            found = []

            def least_round_trip_s() -> float:
                found.append(measure({"south": hosts.addresses["south"]}, TOKEN, north)["south"])
                return found[-1].least_round_trip_s or inf

            # The round trip is shaped twice. The shaping core lets a packet go up to 250 us early, since it wakes late
            # by about as much (GRAIN in core/main.c), and the least of 250 finds a moment at which it woke in time.
            judge(least_round_trip_s, 4e-3 - 2 * 250e-6, 5e-3, "s")
            refused = measure({"south": hosts.addresses["south"]}, b"another token 16", north)["south"]
            silent = inside(north, lambda: _answers_to(str(hosts.addresses["south"]), b"short"))
        assert path_mtu(hosts.addresses["south"], north) == 1500
    assert max(len(each.samples) for each in found) > 25, "a tenth of what is sent where nothing holds the prober up"
    clock = estimate(max(found, key=lambda each: len(each.samples)).samples)
    assert abs(clock.offset_s) <= clock.bound_s, "they have one clock, since they are one machine"
    assert refused.samples == ()
    assert not silent


def _answers_to(address: str, said: bytes) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.3)
        for data in (said, said + struct.pack("!Q", 1) * 4):
            probe.sendto(data, (address, PROBE_PORT))
            try:
                probe.recv(100)
            except TimeoutError:
                continue
            return True
    return False
