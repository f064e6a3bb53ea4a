"""A link across two pretended hosts, and the same on one, to be measured as `benchmarks.fidelity` measures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes

from benchmarks.support.fidelity.subjects import FREE, TOPOLOGY, Subject
from benchmarks.support.pretended import PretendedHosts
from testbed.emulation.network.share import Share
from testbed.emulation.shaping import LinkCounters
from testbed.link import LinkState
from testbed.scaleout.split.cut_links import TUNNEL_MTU, HostsNetwork
from testbed.scaleout.split.host import HostPart, PartRequest, PartSettings
from testbed.scaleout.split.probes import TOKEN_BYTES, Echo, measure, path_mtu
from testbed.spec.topology import Topology

NORTH, SOUTH = "north", "south"


class PartsLink(Subject):
    """A link between two sites, each with a worker, in one or more parts."""

    _parts: Mapping[str, HostPart]

    def _join(self, stack: ExitStack, topology: Topology, requests: Mapping[str, PartRequest]) -> None:
        """Build the parts, by site; a part that has several sites is one."""
        parts: dict[str, HostPart] = {}
        for site, request in requests.items():
            built = next((part for part in parts.values() if part.request is request), None)
            if built is None:
                built = stack.enter_context(HostPart(request))
                built.start_workers()
            parts[site] = built
        self._parts = parts
        self.backend = parts["a"].network.shaper.name
        self.source, self.target = parts["a"].network.container("a-w0"), parts["b"].network.container("b-w0")
        self.address = parts["b"].network.address(topology.workers[1])

    def change(self, state: LinkState) -> None:
        for part in set(self._parts.values()):
            own = part.request.share.own(part.network.topology.links)
            part.network.links_in_force.configure(
                replace(part.network.topology.links[name], state=state) for name in own
            )
        self.state = state

    def unlimit(self) -> None:
        """As good as none; across the cut its delay stays that of the hosts' network."""
        self.change(replace(FREE, delay_s=self._least_delay_s()))

    def _least_delay_s(self) -> float:
        return max(self._parts["a"].request.floors.values(), default=0.0)

    def counters(self) -> LinkCounters | None:
        return self._parts["a"].network.shaper.counters()["a->b"]


def _topology(delay_s: float) -> Topology:
    link = {"between": ["a", "b"], "rate": "100mbit", "delay": f"{delay_s * 1e3}ms"}
    return Topology.from_value({**TOPOLOGY, "links": [link]}, Path("split.yaml"))


class CutLink(PartsLink):
    """Site a on one host, b on another; what lies between them is measured, and taken off."""

    name = "cut"

    def __init__(self, state: LinkState, one_way_s: float) -> None:
        super().__init__(state)
        self._one_way_s = one_way_s

    def _build(self, stack: ExitStack) -> None:
        hosts = stack.enter_context(PretendedHosts([NORTH, SOUTH], self._one_way_s))
        self.underlay = measured(hosts)
        self.mtu = self.underlay.mtu
        floors = {pair: self.underlay.floor_s(pair) for pair in hosts.pairs()}
        topology, host_of = _topology(self.state.delay_s), {"a": NORTH, "b": SOUTH}
        requests = {}
        for site, host in host_of.items():
            share = Share(host, "fidelity", host_of, hosts.addresses, self.mtu, hosts.namespaces[host].path)
            requests[site] = PartRequest(
                f"fidelity-{host}", topology, share, floors, settings=PartSettings(workers="namespaces")
            )
        self._join(stack, topology, requests)


class UncutLink(PartsLink):
    """Both sites on one host, with the MTU that they have where they are cut apart."""

    name = "uncut"
    mtu = TUNNEL_MTU

    def _build(self, stack: ExitStack) -> None:
        topology, host_of = _topology(self.state.delay_s), {"a": NORTH, "b": NORTH}
        share = Share(NORTH, "uncut", host_of, {}, self.mtu)
        request = PartRequest("uncut", topology, share, settings=PartSettings(workers="namespaces"))
        self._join(stack, topology, {"a": request, "b": request})


def measured(hosts: PretendedHosts) -> HostsNetwork:
    """The network between pretended hosts, as one of each pair sees it."""
    token, round_trips, mtus = token_bytes(TOKEN_BYTES), {}, {}
    with ExitStack() as stack:
        for name in hosts.names:
            stack.enter_context(Echo(hosts.addresses[name], token, hosts.namespaces[name].path))
        for pair in hosts.pairs():
            a, b = sorted(pair)
            own = hosts.namespaces[a].path
            least_s = measure({b: hosts.addresses[b]}, token, own)[b].least_round_trip_s
            if least_s is None:
                raise RuntimeError(f"{b} does not answer {a}")
            round_trips[pair], mtus[pair] = least_s, path_mtu(hosts.addresses[b], own)
    return HostsNetwork(round_trips, mtus)
