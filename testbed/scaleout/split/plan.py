"""How a network is split: which site is where, what is taken off which link, and what each host is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from testbed.emulation.network.share import Share
from testbed.scaleout.split.placing import (
    Capacity,
    NoPlacing,
    Pair,
    Placing,
    PlacingProblem,
    SiteNeed,
    pair_rates,
    place,
    sites_of,
)
from testbed.scaleout.underlay import HostsNetwork
from testbed.spec.errors import Fault, SpecError
from testbed.spec.topology import Topology


@dataclass(frozen=True)
class SplitPlan:
    """A placing of the sites of the first of some networks, and of those that it may be swapped to, on hosts with these
    addresses."""

    topologies: Sequence[Topology]
    placing: Placing
    underlay: HostsNetwork
    addresses: Mapping[str, IPv4Address]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.addresses)

    @property
    def floors(self) -> dict[Pair, float]:
        """Seconds that are taken off the delay of links between two hosts."""
        return {hosts: self.underlay.floor_s(hosts) for hosts in self.underlay.round_trips}

    def share(self, host: str, network: str, underlay: Path) -> Share:
        """What a host is to have of the network of this name."""
        return Share(host, network, self.placing.host_of, self.addresses, self.underlay.mtu, underlay)

    @property
    def cut_hosts(self) -> frozenset[Pair]:
        """The pairs of hosts that share a cut link, in any of the networks."""
        host_of = self.placing.host_of
        return frozenset(hosts for one in self.topologies for hosts in self.underlay.cut_hosts(host_of, one))

    def neighbours(self, host: str) -> dict[str, IPv4Address]:
        """The hosts that a host shares a cut link with, and that come after it: so each pair is probed from one end."""
        others = (max(hosts) for hosts in self.cut_hosts if host == min(hosts))
        return {other: self.addresses[other] for other in sorted(others)}

    def record(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {
            "addresses": {name: str(address) for name, address in self.addresses.items()},
            "host_of": dict(self.placing.host_of),
            "cut": list(self.placing.cut_links(self.topologies[0].links)),
            "cut_bps": self.placing.cut_bps,
            "least_cut": self.placing.least,
            "one_way_s": {" ".join(sorted(pair)): floor_s for pair, floor_s in self.floors.items()},
            "asymmetry": "unknown: half of the least round trip is taken for either way",
            "mtu": self.underlay.mtu,
        }


def plan_split(
    topologies: Sequence[Topology],
    cores: Mapping[str, float],
    hosts: Mapping[str, tuple[IPv4Address, Capacity]],
    pinned: Mapping[str, str],
    underlay: HostsNetwork,
    file: Path,
) -> SplitPlan:
    """The plan with the least rate over cut links. The first of the networks is the one to begin with.

    SpecError, of this file, where there is none: with the pair and the floor where a link declares less than the hosts
    are apart.
    """
    problem = PlacingProblem(
        sites=_needs(topologies, cores),
        rates=_rates(topologies),
        hosts={name: capacity for name, (_, capacity) in hosts.items()},
        pinned=pinned,
        barred=underlay.barred(topologies),
    )
    try:
        placing = place(problem)
    except NoPlacing as error:
        raise SpecError(file, _below_floor(problem, topologies, underlay) or [_no_placing(error)]) from None
    return SplitPlan(tuple(topologies), placing, underlay, {name: address for name, (address, _) in hosts.items()})


def _no_placing(error: NoPlacing) -> Fault:
    rule, _, remedy = str(error).rpartition(": ")
    return Fault("hosts", rule or str(error), remedy)


def _below_floor(problem: PlacingProblem, topologies: Sequence[Topology], underlay: HostsNetwork) -> list[Fault]:
    """The links that would be cut, and declare less than their floor, were floors no matter."""
    try:
        placing = place(replace(problem, barred={}))
    except NoPlacing:
        return []
    remedy = "a longer delay, hosts that are nearer to each other, or `hosts` by hand with both sites on one"
    below = {one.link: one for topology in topologies for one in underlay.below(placing.host_of, topology)}
    return [Fault(f"links.{one.link}.delay", str(one), remedy) for one in below.values()]


def _needs(topologies: Sequence[Topology], cores: Mapping[str, float]) -> dict[str, SiteNeed]:
    needs: dict[str, SiteNeed] = {}
    for topology in topologies:
        for name, need in sites_of(topology, cores).items():
            before = needs.get(name, SiteNeed())
            rate = max(before.bits_per_second, need.bits_per_second)
            needs[name] = SiteNeed(rate, max(before.cores, need.cores))
    return needs


def _rates(topologies: Sequence[Topology]) -> dict[Pair, float]:
    rates: dict[Pair, float] = {}
    for topology in topologies:
        for pair, rate in pair_rates(topology).items():
            rates[pair] = max(rates.get(pair, 0.0), rate)
    return rates
