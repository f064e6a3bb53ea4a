"""Addresses of sites, workers and links. Pure and stable: an address stays the same across network swaps.

10.<site>.0/24 (site over two bytes)   a site's LAN: router .1, workers .2, .3, …
172.16.0.0/12 in /30s                  one for each physical pair of WAN links
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

LANS = IPv4Network("10.0.0.0/8")
WANS = IPv4Network("172.16.0.0/12")


@dataclass
class Addressing:
    """Assigns addresses in the order of the calls. Each network has its own, since no address is seen outside it."""

    _sites: dict[str, int] = field(default_factory=dict)
    _pairs: dict[frozenset[str], int] = field(default_factory=dict)

    def know(self, sites: Iterable[str], pairs: Iterable[frozenset[str]]) -> None:
        """Assign the addresses of all sites and physical pairs now, in this order.

        A host that builds only a part of a network then gives everything the same addresses as the other hosts do.
        """
        for site in sites:
            self.lan(site)
        for a, b in sorted(sorted(pair) for pair in pairs):
            self.wan(a, b)

    def number(self, pair: frozenset[str]) -> int:
        """Return the number of a physical pair, counted from 0 in the order of the calls."""
        return self._pairs.setdefault(pair, len(self._pairs))

    def lan(self, site: str) -> IPv4Network:
        """Return the site's network."""
        number = self._sites.setdefault(site, len(self._sites))
        return IPv4Network((int(LANS.network_address) + (number << 8), 24))

    def router(self, site: str) -> IPv4Interface:
        """Return the router's address on its site's LAN."""
        lan = self.lan(site)
        return IPv4Interface((lan.network_address + 1, lan.prefixlen))

    def worker(self, site: str, index: int) -> IPv4Interface:
        """Return the address of the site's worker number `index`, counted from 0."""
        lan = self.lan(site)
        return IPv4Interface((lan.network_address + 2 + index, lan.prefixlen))

    def wan(self, source: str, target: str) -> IPv4Interface:
        """Return the address of `source`'s router on its link with `target`."""
        pair = frozenset((source, target))
        base = int(WANS.network_address) + 4 * self.number(pair)
        return IPv4Interface((base + (1 if source == min(pair) else 2), 30))

    def next_hop(self, source: str, target: str) -> IPv4Address:
        """Return the address to which `source`'s router sends packets for its neighbour `target`."""
        return self.wan(target, source).ip
