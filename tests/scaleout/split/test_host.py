"""One network in two parts, on two pretended hosts: links across the cut, measured from outside."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from benchmarks.support.cut_link import measured
from benchmarks.support.pretended import PretendedHosts
from testbed.emulation.errors import EmulationError
from testbed.emulation.network.namespace import inside
from testbed.emulation.network.share import Share
from testbed.emulation.shaping import ShapingError
from testbed.run.conclusion.verdict import RTT_TOLERANCE_S
from testbed.scaleout.split.host import HostPart, PartRequest, PartSettings, SwapStep
from testbed.spec.event import LinkChange
from testbed.spec.topology import Topology
from tests.measuring import judge

ONE_WAY_S = 2e-3
LAN_S = 4 * 0.1e-3
HOST_OF = {"lima": "north", "cuzco": "north", "quito": "south"}
NETWORK = """
name: andes
sites: {lima: {workers: 1}, cuzco: {workers: 1}, quito: {workers: 1}}
links:
  - {between: [lima, cuzco], rate: 20mbit, delay: 5ms}
  - {between: [lima, quito], rate: 20mbit, delay: 10ms}
"""
#: The link to quito replaced by one from cuzco.
OTHER = NETWORK.replace(
    "{between: [lima, quito], rate: 20mbit, delay: 10ms}", "{between: [cuzco, quito], rate: 5mbit, delay: 30ms}"
)


def topology(text: str) -> Topology:
    return Topology.from_value(yaml.safe_load(text), Path("andes.yaml"))


def changed(link: str, delay: str) -> LinkChange:
    return LinkChange.model_validate({"link": link, "delay": delay})


@dataclass
class Split:
    """A network in two parts, with measurements between workers."""

    parts: dict[str, HostPart]
    backend: str

    def of(self, worker: str) -> HostPart:
        return self.parts[HOST_OF[worker.removesuffix("-w0")]]

    def ping(self, source: str, target: str, *more: str, wait_s: int = 20) -> str:
        part, network = self.of(source), self.of(target).network
        address = network.address(next(one for one in network.topology.workers if one.name == target))
        words = ["ping", "-nq", "-c", "8", "-i", "0.05", "-W", str(wait_s), *more, address]
        process = part.network.container(source).popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return str(process.communicate()[0].decode())

    def passes(self, source: str, target: str, *more: str, wait_s: int = 20) -> bool:
        """Return whether any ping is answered: on a busy host the last answer may come after ping's end."""
        return " 100% packet loss" not in self.ping(source, target, *more, wait_s=wait_s)

    def round_trip_s(self, source: str, target: str) -> float | None:
        found = re.search(r"= ([\d.]+)/", self.ping(source, target))
        return float(found[1]) / 1e3 if found else None

    def assert_answered(self, source: str, target: str, delays_s: float) -> None:
        """Assert that a ping is answered, no sooner than its route's delays: a host only delays packets."""
        found_s = self.round_trip_s(source, target)
        assert found_s is not None and found_s >= delays_s - RTT_TOLERANCE_S[self.backend]

    def judge_round_trip(self, source: str, target: str, expected_s: float) -> None:
        """Assert that a round trip is within the verdict's tolerance."""
        tolerance_s = RTT_TOLERANCE_S[self.backend]
        low_s, high_s = expected_s - tolerance_s, expected_s + tolerance_s
        judge(lambda: self.round_trip_s(source, target) or math.inf, low_s, high_s, "s")

    def swap(self, to: Topology) -> None:
        steps: tuple[SwapStep, ...] = ("build", "move routes", "remove")
        for step in steps:
            for part in self.parts.values():
                part.swap_step(step, to)


@pytest.fixture(scope="module")
def split() -> Iterator[Split]:
    with ExitStack() as stack:
        hosts = stack.enter_context(PretendedHosts(["north", "south"], ONE_WAY_S))
        underlay, parts = measured(hosts), {}
        floors = {pair: underlay.floor_s(pair) for pair in hosts.pairs()}
        for host in hosts.names:
            share = Share(host, "andes", HOST_OF, hosts.addresses, underlay.mtu, hosts.namespaces[host].path)
            request = PartRequest(
                f"andes-{host}", topology(NETWORK), share, floors, settings=PartSettings(workers="namespaces")
            )
            parts[host] = stack.enter_context(HostPart(request))
            parts[host].start_workers()
        yield Split(parts, parts["north"].network.shaper.name)


@pytest.mark.system
def test_each_host_has_its_sites_and_no_others(split: Split) -> None:
    assert {node.name for node in split.parts["north"].network.hosts} == {"lima-r", "lima-w0", "cuzco-r", "cuzco-w0"}
    assert {node.name for node in split.parts["south"].network.hosts} == {"quito-r", "quito-w0"}
    assert split.parts["north"].network.links_in_force.states().keys() == {"lima->cuzco", "cuzco->lima", "lima->quito"}
    assert split.parts["south"].network.links_in_force.states().keys() == {"quito->lima"}


@pytest.mark.physics
def test_a_cut_link_takes_what_it_declares_and_no_more(split: Split) -> None:
    split.judge_round_trip("lima-w0", "quito-w0", 2 * 10e-3 + LAN_S)
    split.judge_round_trip("quito-w0", "cuzco-w0", 2 * 15e-3 + LAN_S)
    split.judge_round_trip("lima-w0", "cuzco-w0", 2 * 5e-3 + LAN_S)


@pytest.mark.system
def test_the_largest_packet_passes_whole_and_a_larger_one_never_leaves(split: Split) -> None:
    headers = 28
    assert split.passes("cuzco-w0", "quito-w0", "-M", "do", "-s", str(1450 - headers))
    assert not split.passes("cuzco-w0", "quito-w0", "-M", "do", "-s", str(1451 - headers), wait_s=1)


@pytest.mark.system
def test_a_change_across_the_cut_is_in_force_and_one_below_the_floor_is_refused(split: Split) -> None:
    north, south = split.parts["north"], split.parts["south"]
    for part, link in ((north, "lima->quito"), (south, "quito->lima")):
        part.change(changed(link, "40ms"))
    split.assert_answered("lima-w0", "quito-w0", 2 * 40e-3 + LAN_S)
    with pytest.raises(ShapingError, match="lima->quito"):
        north.change(changed("lima->quito", "1ms"))
    for part, link in ((north, "lima->quito"), (south, "quito->lima")):
        part.change(changed(link, "10ms"))
    split.assert_answered("lima-w0", "quito-w0", 2 * 10e-3 + LAN_S)


@pytest.mark.system
def test_a_pair_that_is_taken_down_is_down_for_every_host(split: Split) -> None:
    for up in (False, True):
        for part in split.parts.values():
            part.network.take("lima", "quito", up)
        assert split.passes("cuzco-w0", "quito-w0", wait_s=20 if up else 1) == up


@pytest.mark.system
def test_a_network_swap_goes_across_the_cut_and_back(split: Split) -> None:
    split.swap(topology(OTHER))
    try:
        assert split.parts["north"].network.pairs.keys() == {
            frozenset(("lima", "cuzco")),
            frozenset(("cuzco", "quito")),
        }
        split.assert_answered("lima-w0", "quito-w0", 2 * 35e-3 + LAN_S)
    finally:
        split.swap(topology(NETWORK))
    split.assert_answered("lima-w0", "quito-w0", 2 * 10e-3 + LAN_S)


@pytest.mark.system
def test_a_second_network_of_the_same_numbers_is_refused_with_the_reason(split: Split) -> None:
    share, floors = split.parts["south"].request.share, split.parts["south"].request.floors
    again = HostPart(
        PartRequest("andes-again", topology(NETWORK), share, floors, settings=PartSettings(workers="namespaces"))
    )
    with pytest.raises(EmulationError, match=r"south.*north"):
        again.__enter__()


@pytest.mark.system
def test_nothing_is_left_in_a_host_s_namespace(split: Split) -> None:
    """Tunnels lie in routers: a host has its card alone, also while tunnels are up."""
    namespace = split.parts["south"].request.share.underlay
    lines = inside(namespace, lambda: Path("/proc/thread-self/net/dev").read_text()).splitlines()[2:]
    assert {line.split(":")[0].strip() for line in lines} == {"lo", "eth0"}
