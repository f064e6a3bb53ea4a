"""Which host carries which site of a network that is split: the least rate over cut links, within hosts' budgets. Pure.

Sites are cut apart where links are WAN links, since only those may cross from a host to another: a site's LAN, its
router and its workers stay together. The problem is a capacitated k-way cut, which is NP-hard; as an integer program of
networks as people draw them it is solved to its end:

    x[s, h]   site s is on host h: one of them each
    y[p, h]   one end of the pair p is on h and the other is not:  y[p, h] ≥ |x[a, h] − x[b, h]|
    least     Σ over p  rate[p] / 2 · Σ over h  y[p, h]            each cut pair is seen from two hosts
    such that Σ over s  need[s] · x[s, h] ≤ budget[h]              bits a second, and cores
              Σ over s  x[s, h] ≥ 1                                who names a host wants it used
              x[a, g] + x[b, h] ≤ 1                                where the underlay takes longer than the link may
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from testbed.errors import DetailedError
from testbed.link import link_ends
from testbed.spec.topology import Topology

#: The search ends after this, with the best that it has found: forty sites of a random graph over four hosts take 4 s.
SEARCH_S = 20.0

#: A pair of sites, or of hosts, in either order.
Pair = frozenset[str]


class NoPlacing(DetailedError, ValueError):
    """No placing of the sites on the hosts keeps to what was asked. The text says why, as far as one thing is why."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a host may be given: bits a second summed over the links that leave its sites, and cores of workers."""

    bits_per_second: float = math.inf
    cores: float = math.inf


@dataclass(frozen=True, slots=True)
class SiteNeed:
    """What a site asks of its host, in the same units."""

    bits_per_second: float = 0.0
    cores: float = 0.0


@dataclass(frozen=True)
class PlacingProblem:
    """Sites with their needs, the rate that each pair of them exchanges, and hosts with what they may be given.

    `pinned` sites stay where the file has them. `barred` has, for a pair of sites, the pairs of hosts between which it
    cannot be cut.
    """

    sites: Mapping[str, SiteNeed]
    rates: Mapping[Pair, float]
    hosts: Mapping[str, Capacity]
    pinned: Mapping[str, str]
    barred: Mapping[Pair, frozenset[Pair]]


@dataclass(frozen=True)
class Placing:
    """Site → host. `cut_bps` is the rate over the pairs that are cut, both directions; `least` says whether there is
    none with less, or the search ended before it knew."""

    host_of: Mapping[str, str]
    cut_bps: float
    least: bool = True

    def sites_on(self, host: str) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(site for site, its in self.host_of.items() if its == host)

    def is_cut(self, link: str) -> bool:
        """Whether a directed link leads from one host to another."""
        a, b = link_ends(link)
        return self.host_of[a] != self.host_of[b]

    def cut_links(self, links: Iterable[str]) -> tuple[str, ...]:
        """Those of some directed links that lead from one host to another."""
        return tuple(link for link in links if self.is_cut(link))


def place(problem: PlacingProblem) -> Placing:
    """The placing with the least rate over cut pairs. NoPlacing where there is none."""
    if len(problem.hosts) > len(problem.sites):
        raise NoPlacing(
            f"{len(problem.hosts)} hosts are more than the {len(problem.sites)} sites: name fewer hosts",
            field="hosts",
            given=len(problem.hosts),
        )
    for site, host in problem.pinned.items():
        if host not in problem.hosts:
            raise NoPlacing(
                f"{site} is to be on {host}, which is none of {', '.join(problem.hosts)}",
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
        raise NoPlacing(_why(problem))
    host_of = program.host_of(found.x)
    return Placing(host_of, cut_bps(problem.rates, host_of), least=found.status == 0)


def cut_bps(rates: Mapping[Pair, float], host_of: Mapping[str, str]) -> float:
    """The rate over the pairs whose sites are on different hosts."""
    return sum(rate for pair, rate in rates.items() if len({host_of[site] for site in pair}) > 1)


def allowed(problem: PlacingProblem, host_of: Mapping[str, str]) -> bool:
    """Whether a placing keeps to what was asked."""
    for host, capacity in problem.hosts.items():
        own = [problem.sites[site] for site, its in host_of.items() if its == host]
        fits = sum(site.bits_per_second for site in own) <= capacity.bits_per_second
        if not own or not fits or sum(site.cores for site in own) > capacity.cores:
            return False
    kept = all(host_of[site] == host for site, host in problem.pinned.items())
    return kept and not any(_crosses(pair, between, host_of) for pair, between in problem.barred.items())


def _crosses(pair: Pair, between: frozenset[Pair], host_of: Mapping[str, str]) -> bool:
    return frozenset(host_of[site] for site in pair) in between


def _why(problem: PlacingProblem) -> str:
    """Why there is none: what single thing, left aside, would let one be."""
    for names, quantity, unit in (("bits_per_second", 1e6, "Mbit/s"), ("cores", 1.0, "cores")):
        asked = sum(getattr(site, names) for site in problem.sites.values()) / quantity
        there = sum(getattr(host, names) for host in problem.hosts.values()) / quantity
        if asked > there:
            return f"the sites ask for {asked:.4g} {unit} together, the hosts have {there:.4g}: name more hosts"
    return (
        "no placing keeps every host within its budget and every cut link above the floor of its hosts: name other "
        "hosts, or say by hand which site is where"
    )


class _Program:
    """The problem as an integer program: x first, site by site, then y, pair by pair."""

    def __init__(self, problem: PlacingProblem) -> None:
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
        """In units of the largest rate, so that the solver's tolerances are of ones."""
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
        """Entries, at least, at most."""
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


def sites_of(topology: Topology, cores: Mapping[str, float]) -> dict[str, SiteNeed]:
    """What each site of a network asks of its host; `cores` is what each worker computes on, by its name."""
    found = {}
    for name in topology.sites:
        rate = sum(most_bps(topology, link) for link in topology.links if link_ends(link)[0] == name)
        found[name] = SiteNeed(
            rate, sum(cores.get(worker.name, 0.0) for worker in topology.workers if worker.site == name)
        )
    return found


def pair_rates(topology: Topology) -> dict[Pair, float]:
    """The rate of each physical pair of links, both directions."""
    rates: dict[Pair, float] = {}
    for name in topology.links:
        pair = frozenset(link_ends(name))
        rates[pair] = rates.get(pair, 0.0) + most_bps(topology, name)
    return rates


def most_bps(topology: Topology, link: str) -> float:
    """A link's highest rate, over its trace."""
    own = topology.links[link]
    rows = own.trace.rows if own.trace is not None else ()
    return max((row.over(own.state).rate_bps for row in rows), default=own.state.rate_bps)
