"""Probes over a real network between two pretended hosts."""

from __future__ import annotations

import socket
import struct
from math import inf

import pytest

from benchmarks.support.pretended import PretendedHosts
from testbed.emulation.network.namespace import inside
from testbed.scaleout.clock import estimate
from testbed.scaleout.underlay_probe import PROBE_PORT, Echo, measure, path_mtu
from tests.measuring import judge

pytestmark = pytest.mark.physics

TOKEN = b"0123456789abcdef"


def test_who_has_the_token_learns_the_way_and_the_clock_and_nobody_else_is_answered() -> None:
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
