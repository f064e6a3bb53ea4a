"""Which address a thing gets. Pure, and stable: what was given an address keeps it across network swaps.

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
    """Hands out addresses in the order of asking. Each network has its own, since none is seen outside it."""

    _sites: dict[str, int] = field(default_factory=dict)
    _pairs: dict[frozenset[str], int] = field(default_factory=dict)

    def know(self, sites: Iterable[str], pairs: Iterable[frozenset[str]]) -> None:
        """Hand out what sites and physical pairs of links get, in this order, before anyone asks: whoever builds a part
        of a network then gives all of it the addresses that another part's builder does."""
        for site in sites:
            self.lan(site)
        for a, b in sorted(sorted(pair) for pair in pairs):
            self.wan(a, b)

    def number(self, pair: frozenset[str]) -> int:
        """The number of a physical pair, from 0 in the order of asking."""
        return self._pairs.setdefault(pair, len(self._pairs))

    def lan(self, site: str) -> IPv4Network:
        """The site's network."""
        number = self._sites.setdefault(site, len(self._sites))
        return IPv4Network((int(LANS.network_address) + (number << 8), 24))

    def router(self, site: str) -> IPv4Interface:
        """The router's address on its site's LAN."""
        lan = self.lan(site)
        return IPv4Interface((lan.network_address + 1, lan.prefixlen))

    def worker(self, site: str, index: int) -> IPv4Interface:
        """The address of the site's worker number `index`, from 0."""
        lan = self.lan(site)
        return IPv4Interface((lan.network_address + 2 + index, lan.prefixlen))

    def wan(self, source: str, target: str) -> IPv4Interface:
        """The address of `source`'s router on its link with `target`."""
        pair = frozenset((source, target))
        base = int(WANS.network_address) + 4 * self.number(pair)
        return IPv4Interface((base + (1 if source == min(pair) else 2), 30))

    def next_hop(self, source: str, target: str) -> IPv4Address:
        """Where `source`'s router sends what is to go to its neighbour `target`."""
        return self.wan(target, source).ip
