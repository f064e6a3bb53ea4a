"""The state of a network as the API reports it, over a shaper that records its calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from testbed.emulation.daemon.status import status
from testbed.emulation.links.links import History
from testbed.emulation.shaping import LinkCounters
from testbed.emulation.testbed import Testbed
from testbed.spec.topology import Topology
from testbed.trace.trace import Row, Trace
from tests.api.network import NetworkWithoutPackets
from tests.spec.files import TOPOLOGY

GONE, PLAIN, STAYS = "paris->tokyo", "tokyo->paris", "paris->dallas"


@pytest.mark.local
def test_the_lateness_is_of_links_that_are_replayed_now() -> None:
    topology, rows = Topology.from_value(TOPOLOGY, Path("three.yaml")), (Row(0, 1e6), Row(1, 2e6))
    links = dict(topology.links)
    for name in (GONE, PLAIN, STAYS):
        topology.links[name] = replace(links[name], trace=Trace(rows))
    network = NetworkWithoutPackets(topology, History())

    def late_ms_p99() -> float | None:
        return status(cast(Testbed, network), "network").replay.late_ms_p99

    assert late_ms_p99() is None
    for moment, name in enumerate((STAYS, GONE, PLAIN), start=1):
        network.shaper.now_s, network.shaper.late_s = moment, moment * 1e-3
        network.links_in_force.replay({name: [(moment, rows[1])]})
        network.links_in_force.collect()
    assert late_ms_p99() == 3.0, "of the latest link"
    network.links_in_force.remove(GONE)
    network.links_in_force.configure([links[PLAIN]])
    assert late_ms_p99() == 1.0
    assert network.links_in_force.lateness()[GONE] == [2e-3]
    network.links_in_force.remove(STAYS)
    assert late_ms_p99() is None


@pytest.mark.local
def test_a_shaper_that_has_ended_is_named_and_its_links_are_still_listed() -> None:
    network = NetworkWithoutPackets(Topology.from_value(TOPOLOGY, Path("three.yaml")), History())
    network.shaper.counted = {name: LinkCounters(packets=3) for name in network.links_in_force.states()}
    before = status(cast(Testbed, network), "network")
    network.shaper.ended = "the shaping core was killed by signal 9"
    after = status(cast(Testbed, network), "network")
    assert (before.failure, after.failure) == (None, network.shaper.ended)
    assert after.links.keys() == before.links.keys() != set()
    assert {link.packets for link in after.links.values()} == {0}
