"""The plan of a split network: the host of each site, and what each host is told. Pure.

Only WAN links can cross from a host to another: a site's LAN, its router and its workers stay together. The assignment
cuts the least rate within the hosts' budgets. That is a capacitated k-way cut, which is NP-hard; as an integer program,
networks as people draw them are solved to optimality:

    x[s, h]   site s is on host h: exactly one h for each s
    y[p, h]   one end of the pair p is on h and the other is not:  y[p, h] ≥ |x[a, h] − x[b, h]|
    least     Σ over p  rate[p] / 2 · Σ over h  y[p, h]            each cut pair is seen from two hosts
    such that Σ over s  need[s] · x[s, h] ≤ budget[h]              bits a second, and cores
              Σ over s  x[s, h] ≥ 1                                every named host is used
              x[a, g] + x[b, h] ≤ 1                                where the underlay takes longer than the link may
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from testbed.emulation.network.share import PAIRS_AT_MOST, Share
from testbed.link import link_ends
from testbed.scaleout.split.cut_links import HostsNetwork, Pair, cut_hosts
from testbed.spec.errors import Fault, SpecError
from testbed.spec.topology import Topology
from testbed.spec.units import count

#: The solver's time limit in seconds, after which the best assignment so far is taken: forty sites of a random graph
#: over four hosts take 4 s.
SEARCH_S = 20.0


@dataclass(frozen=True)
class SplitPlan:
    """The split of a network, and of the networks that it may be swapped to."""

    #: The network to begin with, then the others.
    topologies: Sequence[Topology]
    assignment: SiteAssignment
    underlay: HostsNetwork
    #: Each host's address on the hosts' network.
    addresses: Mapping[str, IPv4Address]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts' names."""
        return tuple(self.addresses)

    @property
    def floors(self) -> dict[Pair, float]:
        """The seconds that are taken off the delay of links between each two hosts."""
        return {hosts: self.underlay.floor_s(hosts) for hosts in self.underlay.round_trips}

    def floor_s(self, link: str) -> float:
        """Return the seconds that are taken off a link's delay; 0 where both of its sites are on one host."""
        host_of = self.assignment.host_of
        return self.underlay.floor_s(frozenset(host_of[site] for site in link_ends(link)))

    def share(self, host: str, network: str, underlay: Path) -> Share:
        """Return a host's share of the network of this name."""
        return Share(host, network, self.assignment.host_of, self.addresses, self.underlay.mtu, underlay)

    @property
    def cut_hosts(self) -> frozenset[Pair]:
        """The pairs of hosts that share a cut link, in any of the networks."""
        host_of = self.assignment.host_of
        return frozenset(hosts for one in self.topologies for hosts in cut_hosts(host_of, one.links).values())

    def neighbours(self, host: str) -> dict[str, IPv4Address]:
        """Return the hosts after `host` by name that share a cut link with it: each pair is probed from one end."""
        others = (max(hosts) for hosts in self.cut_hosts if host == min(hosts))
        return {other: self.addresses[other] for other in sorted(others)}

    def record(self) -> dict[str, Any]:
        """Return the plan's part of a manifest."""
        return {
            "addresses": {name: str(address) for name, address in self.addresses.items()},
            "host_of": dict(self.assignment.host_of),
            "cut": list(cut_hosts(self.assignment.host_of, self.topologies[0].links)),
            "cut_bps": self.assignment.cut_bps,
            "least_cut": self.assignment.least,
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
    """Plan a split with the least rate over cut links.

    Args:
        topologies: The network to begin with, then those that it may be swapped to.
        cores: The cores that each worker computes on, by its name.
        hosts: Each host's address and capacity.
        pinned: Site -> host, for sites that the user assigned to one of `hosts`.
        underlay: The network between the hosts.
        file: The experiment's file, for errors.

    Raises:
        SpecError: There is no such plan. Where a link declares less delay than its hosts are apart, the fault names
            the link, the hosts and the floor. Where the networks have more pairs of links than there are numbers of
            tunnels, the error names the topology's file.
    """
    rates = _pair_rates(topologies)
    if len(rates) > PAIRS_AT_MOST:
        held = "the file and those of swaps together have" if len(topologies) > 1 else "the file has"
        rule = f"{held} {len(rates)} pairs of links, and a network over several hosts has at most {PAIRS_AT_MOST}"
        largest = max(topologies, key=lambda one: len(one.links))
        raise SpecError(largest.file, [Fault("links", rule, "fewer links, or an experiment without `hosts`")])
    problem = AssignmentProblem(
        sites=_needs(topologies, cores),
        rates=rates,
        hosts={name: capacity for name, (_, capacity) in hosts.items()},
        pinned=pinned,
        barred=underlay.barred(topologies),
    )
    try:
        assignment = assign_sites(problem)
    except NoAssignment as error:
        rule, _, remedy = str(error).rpartition(": ")
        faults = _below_floor(problem, topologies, underlay) or [Fault("hosts", rule, remedy)]
        raise SpecError(file, faults) from None
    return SplitPlan(tuple(topologies), assignment, underlay, {name: address for name, (address, _) in hosts.items()})


def _below_floor(problem: AssignmentProblem, topologies: Sequence[Topology], underlay: HostsNetwork) -> list[Fault]:
    """Return a fault for each link that the best assignment without floors would cut below its floor."""
    try:
        assignment = assign_sites(replace(problem, barred={}))
    except NoAssignment:
        return []
    remedy = "a longer delay, hosts that are nearer to each other, or `hosts` by hand with both sites on one"
    below = {link: why for one in topologies for link, why in underlay.below(assignment.host_of, one).items()}
    return [Fault(f"links.{link}.delay", why, remedy) for link, why in below.items()]


def _needs(topologies: Sequence[Topology], cores: Mapping[str, float]) -> dict[str, SiteNeed]:
    """Return each site's need, the highest over the networks."""
    needs: dict[str, SiteNeed] = {}
    for topology in topologies:
        for name in topology.sites:
            before = needs.get(name, SiteNeed())
            rate = sum(_highest_rate(topology, link) for link in topology.links if link_ends(link)[0] == name)
            used = sum(cores.get(worker.name, 0.0) for worker in topology.workers if worker.site == name)
            needs[name] = SiteNeed(max(before.bits_per_second, rate), max(before.cores, used))
    return needs


def _pair_rates(topologies: Sequence[Topology]) -> dict[Pair, float]:
    """Return the rate of each physical pair of links, both directions summed, the highest over the networks."""
    highest: dict[Pair, float] = {}
    for topology in topologies:
        rates: dict[Pair, float] = {}
        for name in topology.links:
            pair = frozenset(link_ends(name))
            rates[pair] = rates.get(pair, 0.0) + _highest_rate(topology, name)
        for pair, rate in rates.items():
            highest[pair] = max(highest.get(pair, 0.0), rate)
    return highest


def _highest_rate(topology: Topology, name: str) -> float:
    """Return a link's highest rate over its trace, in bits a second."""
    link = topology.links[name]
    rows = link.trace.rows if link.trace is not None else ()
    return max((row.over(link.state).rate_bps for row in rows), default=link.state.rate_bps)


# The assignment of sites to hosts -------------------------------------------------------------------------------------


class NoAssignment(ValueError):
    """No assignment of the sites to the hosts meets the constraints. The text names one reason, then a remedy."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that a host can carry."""

    #: Summed over the links that leave the host's sites.
    bits_per_second: float = math.inf
    #: Summed over the workers.
    cores: float = math.inf


@dataclass(frozen=True, slots=True)
class SiteNeed:
    """The part of its host's capacity that a site takes."""

    bits_per_second: float = 0.0
    cores: float = 0.0


@dataclass(frozen=True)
class AssignmentProblem:
    """The sites, the hosts, and the constraints of an assignment."""

    sites: Mapping[str, SiteNeed]
    #: The rate that each pair of sites exchanges, in bits a second.
    rates: Mapping[Pair, float]
    hosts: Mapping[str, Capacity]
    #: Site -> host, for sites that the user assigned to one of `hosts`.
    pinned: Mapping[str, str]
    #: Pair of sites -> the pairs of hosts between which it cannot be cut.
    barred: Mapping[Pair, frozenset[Pair]]


@dataclass(frozen=True)
class SiteAssignment:
    """The host of each site, and the total rate of the links between hosts."""

    host_of: Mapping[str, str]
    #: The rate over the cut pairs, both directions, in bits a second.
    cut_bps: float
    #: Whether no assignment cuts less; False when the search reached its time limit.
    least: bool = True

    def sites_on(self, host: str) -> tuple[str, ...]:
        """Return a host's sites, in the order of the file."""
        return tuple(site for site, its in self.host_of.items() if its == host)


def assign_sites(problem: AssignmentProblem) -> SiteAssignment:
    """Return the assignment with the least rate over cut pairs. Raises NoAssignment where there is none."""
    if len(problem.hosts) > len(problem.sites):
        raise NoAssignment(
            f"{len(problem.hosts)} hosts are more than the {count(len(problem.sites), 'site')}: name fewer hosts"
        )
    found = _least_cut(problem)
    if found.x is None:
        raise NoAssignment(_why_none(problem))
    hosts = list(problem.hosts)
    chosen = found.x[: len(problem.sites) * len(hosts)].reshape(len(problem.sites), len(hosts)).argmax(axis=1)
    host_of = {site: hosts[at] for site, at in zip(problem.sites, chosen, strict=True)}
    return SiteAssignment(host_of, cut_bps(problem.rates, host_of), least=found.status == 0)


def cut_bps(rates: Mapping[Pair, float], host_of: Mapping[str, str]) -> float:
    """Return the sum in bit/s of the rates of all pairs whose two sites are on different hosts."""
    return sum(rate for pair, rate in rates.items() if len({host_of[site] for site in pair}) > 1)


def _why_none(problem: AssignmentProblem) -> str:
    """Return the reason why there is no assignment: the total need that exceeds the total budget, if one does."""
    for names, quantity, unit in (("bits_per_second", 1e6, "Mbit/s"), ("cores", 1.0, "cores")):
        asked = sum(getattr(site, names) for site in problem.sites.values()) / quantity
        there = sum(getattr(host, names) for host in problem.hosts.values()) / quantity
        if asked > there:
            return f"the sites ask for {asked:.4g} {unit} together, the hosts have {there:.4g}: name more hosts"
    return (
        "no assignment keeps every host within its budget and every cut link above the floor of its hosts: name other "
        "hosts, or say by hand which site is where"
    )


def _least_cut(problem: AssignmentProblem) -> Any:
    """Return the solver's result for the integer program in this module's docstring.

    Returns:
        The result of `scipy.optimize.milp`. Its `x` begins with x[s, h], site by site, then has y[p, h], pair by pair.
    """
    sites = {site: at for at, site in enumerate(problem.sites)}
    hosts = {host: at for at, host in enumerate(problem.hosts)}
    rates = {pair: rate for pair, rate in problem.rates.items() if rate > 0}
    xs, ys = len(sites) * len(hosts), len(rates) * len(hosts)
    each_host = np.eye(len(hosts))

    def on_x(rows: np.ndarray, least: float, most: float) -> LinearConstraint:
        return LinearConstraint(np.hstack([rows, np.zeros((len(rows), ys))]), least, most)

    constraints = [
        on_x(np.kron(np.eye(len(sites)), np.ones(len(hosts))), 1, 1),  # one host for each site
        on_x(np.kron(np.ones(len(sites)), each_host), 1, np.inf),  # every host is used
    ]
    for name in ("bits_per_second", "cores"):
        needs = np.array([getattr(site, name) for site in problem.sites.values()])
        budgets = np.array([getattr(host, name) for host in problem.hosts.values()])
        limited = np.isfinite(budgets)
        units = np.maximum(budgets[limited], 1e-9)[:, None]
        if limited.any():
            constraints.append(on_x(np.kron(needs, each_host)[limited] / units, 0, 1))
    if rates:
        ends = np.zeros((len(rates), len(sites)))
        for row, pair in zip(ends, rates, strict=True):
            row[[sites[site] for site in sorted(pair)]] = 1, -1
        apart = np.kron(ends, each_host)  # x[a, h] − x[b, h]
        constraints += [LinearConstraint(np.hstack([way * apart, np.eye(ys)]), 0, np.inf) for way in (1, -1)]
    for pair, between in problem.barred.items():
        for a, b in permutations(pair):
            for g, h in map(sorted, between):
                row = np.zeros((len(sites), len(hosts)))
                row[sites[a], hosts[g]] = row[sites[b], hosts[h]] = 1
                constraints.append(on_x(row.reshape(1, xs), 0, 1))
    least = np.zeros(xs + ys)
    for site, host in problem.pinned.items():
        least[sites[site] * len(hosts) + hosts[host]] = 1
    # In units of the largest rate: the solver's tolerances are made for values around 1.
    costs = np.array(list(rates.values())) / max(rates.values(), default=1.0) / 2
    return milp(
        np.concatenate([np.zeros(xs), np.repeat(costs, len(hosts))]),
        integrality=np.ones(xs + ys),
        bounds=Bounds(least, np.ones(xs + ys)),
        constraints=constraints,
        options={"time_limit": SEARCH_S, "mip_rel_gap": 0.0},
    )
