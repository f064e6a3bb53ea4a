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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from testbed.emulation.network.share import Share
from testbed.errors import DetailedError
from testbed.link import link_ends
from testbed.scaleout.split.underlay import HostsNetwork, Pair, cut_hosts
from testbed.spec.errors import Fault, SpecError
from testbed.spec.topology import Topology

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

    def share(self, host: str, network: str, underlay: Path) -> Share:
        """Return a host's share of the network of this name."""
        return Share(host, network, self.assignment.host_of, self.addresses, self.underlay.mtu, underlay)

    @property
    def cut_hosts(self) -> frozenset[Pair]:
        """The pairs of hosts that share a cut link, in any of the networks."""
        host_of = self.assignment.host_of
        return frozenset(hosts for one in self.topologies for hosts in cut_hosts(host_of, one).values())

    def neighbours(self, host: str) -> dict[str, IPv4Address]:
        """Return the hosts after `host` by name that share a cut link with it: each pair is probed from one end."""
        others = (max(hosts) for hosts in self.cut_hosts if host == min(hosts))
        return {other: self.addresses[other] for other in sorted(others)}

    def record(self) -> dict[str, Any]:
        """Return the plan's part of a manifest."""
        return {
            "addresses": {name: str(address) for name, address in self.addresses.items()},
            "host_of": dict(self.assignment.host_of),
            "cut": list(self.assignment.cut_links(self.topologies[0].links)),
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
        pinned: Site -> host, for sites that the user assigned.
        file: The experiment's file, for errors.

    Raises:
        SpecError: There is no such plan. Where a link declares less delay than its hosts are apart, the fault names
            the link, the hosts and the floor.
    """
    problem = AssignmentProblem(
        sites=_needs(topologies, cores),
        rates=_pair_rates(topologies),
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
    below = {one.link: one for topology in topologies for one in underlay.below(assignment.host_of, topology)}
    return [Fault(f"links.{one.link}.delay", str(one), remedy) for one in below.values()]


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


class NoAssignment(DetailedError, ValueError):
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
    """A site's share of its host's capacity."""

    bits_per_second: float = 0.0
    cores: float = 0.0


@dataclass(frozen=True)
class AssignmentProblem:
    """The sites, the hosts, and the constraints of an assignment."""

    sites: Mapping[str, SiteNeed]
    #: The rate that each pair of sites exchanges, in bits a second.
    rates: Mapping[Pair, float]
    hosts: Mapping[str, Capacity]
    #: Site -> host, for sites that the user assigned.
    pinned: Mapping[str, str]
    #: Pair of sites -> the pairs of hosts between which it cannot be cut.
    barred: Mapping[Pair, frozenset[Pair]]


@dataclass(frozen=True)
class SiteAssignment:
    """The host of each site."""

    host_of: Mapping[str, str]
    #: The rate over the cut pairs, both directions, in bits a second.
    cut_bps: float
    #: Whether no assignment cuts less; False when the search reached its time limit.
    least: bool = True

    def sites_on(self, host: str) -> tuple[str, ...]:
        """Return a host's sites, in the order of the file."""
        return tuple(site for site, its in self.host_of.items() if its == host)

    def cut_links(self, links: Iterable[str]) -> tuple[str, ...]:
        """Return the directed links that lead from one host to another."""
        ends = ((link, *link_ends(link)) for link in links)
        return tuple(link for link, a, b in ends if self.host_of[a] != self.host_of[b])


def assign_sites(problem: AssignmentProblem) -> SiteAssignment:
    """Return the assignment with the least rate over cut pairs. Raises NoAssignment where there is none."""
    if len(problem.hosts) > len(problem.sites):
        raise NoAssignment(
            f"{len(problem.hosts)} hosts are more than the {len(problem.sites)} sites: name fewer hosts",
            field="hosts",
            given=len(problem.hosts),
        )
    for site, host in problem.pinned.items():
        if host not in problem.hosts:
            raise NoAssignment(
                f"{site} is assigned to {host}, which is not among the hosts: name one of {', '.join(problem.hosts)}",
                field="host",
                host=host,
                given=site,
            )
    program = _Program(problem)
    found = milp(
        program.costs(),
        integrality=np.ones(program.size),
        bounds=program.bounds(),
        constraints=program.constraints(),
        options={"time_limit": SEARCH_S, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise NoAssignment(_why_none(problem))
    host_of = program.host_of(found.x)
    return SiteAssignment(host_of, cut_bps(problem.rates, host_of), least=found.status == 0)


def cut_bps(rates: Mapping[Pair, float], host_of: Mapping[str, str]) -> float:
    """Return the rate over the pairs whose sites are on different hosts."""
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


class _Program:
    """The problem as an integer program: the variables x first, site by site, then y, pair by pair."""

    def __init__(self, problem: AssignmentProblem) -> None:
        self._problem = problem
        self._sites, self._hosts = list(problem.sites), list(problem.hosts)
        self._pairs = [(pair, rate) for pair, rate in problem.rates.items() if rate > 0]
        self._x = {key: at for at, key in enumerate(product(self._sites, self._hosts))}
        self._y = {
            key: len(self._x) + at for at, key in enumerate(product((pair for pair, _ in self._pairs), self._hosts))
        }

    @property
    def size(self) -> int:
        return len(self._x) + len(self._y)

    def costs(self) -> np.ndarray:
        """Return the costs in units of the largest rate: the solver's tolerances are made for values around 1."""
        largest = max((rate for _, rate in self._pairs), default=1.0)
        costs = np.zeros(self.size)
        for pair, rate in self._pairs:
            for host in self._hosts:
                costs[self._y[pair, host]] = rate / largest / 2
        return costs

    def bounds(self) -> Bounds:
        least, most = np.zeros(self.size), np.ones(self.size)
        for site, host in self._problem.pinned.items():
            least[self._x[site, host]] = 1.0
        return Bounds(least, most)

    def constraints(self) -> LinearConstraint:
        rows, least, most = [], [], []
        for entries, low, high in self._rows():
            row = np.zeros(self.size)
            for at, factor in entries:
                row[at] += factor
            rows.append(row)
            least.append(low)
            most.append(high)
        return LinearConstraint(np.array(rows), np.array(least), np.array(most))

    def _rows(self) -> Iterator[tuple[Sequence[tuple[int, float]], float, float]]:
        """Yield each constraint as (entries, at least, at most)."""
        x, y, sites = self._x, self._y, self._problem.sites
        for site in self._sites:
            yield [(x[site, host], 1.0) for host in self._hosts], 1.0, 1.0
        for host, capacity in self._problem.hosts.items():
            yield [(x[site, host], 1.0) for site in self._sites], 1.0, math.inf
            for name in ("bits_per_second", "cores"):
                budget = getattr(capacity, name)
                if math.isfinite(budget):
                    unit = max(budget, 1e-9)
                    yield [(x[site, host], getattr(sites[site], name) / unit) for site in self._sites], 0.0, 1.0
        for pair, _ in self._pairs:
            a, b = sorted(pair)
            for host in self._hosts:
                yield [(y[pair, host], 1.0), (x[a, host], -1.0), (x[b, host], 1.0)], 0.0, math.inf
                yield [(y[pair, host], 1.0), (x[a, host], 1.0), (x[b, host], -1.0)], 0.0, math.inf
        for pair, between in self._problem.barred.items():
            a, b = sorted(pair)
            for g, h in (sorted(hosts) for hosts in between):
                yield [(x[a, g], 1.0), (x[b, h], 1.0)], 0.0, 1.0
                yield [(x[a, h], 1.0), (x[b, g], 1.0)], 0.0, 1.0

    def host_of(self, values: np.ndarray) -> dict[str, str]:
        return {site: max(self._hosts, key=lambda host: values[self._x[site, host]]) for site in self._sites}
