"""TCP's buffers in the workers' namespaces, sized for the network's path with the largest bandwidth-delay product.

A connection sends no more in a round trip than its buffers hold. Linux lets a sender's buffer grow to 4 MiB, of which
two thirds to three quarters are payload in flight: over 140 Mbit/s and 218 ms (3.8 MB) that gave 107 Mbit/s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

from testbed.emulation.network.node import NamespaceNode, SettingRefused
from testbed.emulation.network.routing import Routes
from testbed.link import LinkState, link_name
from testbed.spec.topology import Link, Topology

#: The sender's buffer in bandwidth-delay products. Slow start has four of them in flight when it learns of the first
#: loss (the path and its queue, one each, were full a round trip before), and the kernel counts up to 2,304 bytes of
#: memory for 1,448 of payload. Measured over 140 Mbit/s and 218 ms, as a share of the ideal goodput: with six, BBR 95 %
#: and reno 99.8 %; with four, BBR 88 to 93 %, because data sent past a hole filled the buffer until the hole was
#: repaired.
SENT_BDPS = 6

#: A receiver announces half of its buffer, or what its packets' share of payload leaves of it. With twice the sender's
#: size, the receiver never limits.
RECEIVED_BDPS = 2 * SENT_BDPS

#: The minimum, default and least maximum sizes in bytes, as in the kernel's own settings: short paths keep these.
#: Hosts with other limits get these too, so that a run has the same limits on every host.
SENT_LEAST = (4096, 16384, 4 << 20)
RECEIVED_LEAST = (4096, 131072, 6 << 20)

#: TCP's largest window is one gibibyte.
MOST_BYTES = 1 << 30


class Reach(NamedTuple):
    """The highest rate and the longest delay (with jitter) of a directed link, over its whole trace."""

    rate_bps: float
    delay_s: float

    @classmethod
    def of(cls, link: Link) -> Self:
        """Return the reach of a configured link. A trace may have a million rows, so no states are built from them."""
        rows = link.trace.rows if link.trace is not None else ()
        rate_bps = max((row.rate_bps or 0.0 for row in rows), default=0.0)
        delay_s = max((row.delay_s or 0.0 for row in rows), default=0.0)
        own = link.state
        return cls(max(rate_bps, own.rate_bps), max(delay_s, own.delay_s) + link.most_jitter_s)

    def then(self, rest: Reach) -> Self:
        """Return the reach of a path that begins with this link and continues with `rest`."""
        return type(self)(min(self.rate_bps, rest.rate_bps), self.delay_s + rest.delay_s)

    def or_more(self, state: LinkState) -> Self:
        """Return this reach, with its rate and delay raised to those of `state` where they are higher."""
        return type(self)(max(self.rate_bps, state.rate_bps), max(self.delay_s, state.delay_s + state.jitter_s))


def largest_bdp(topology: Topology, routes: Routes, reaches: Mapping[str, Reach]) -> float:
    """Return the largest bandwidth-delay product in bytes of any path from a worker to another and back."""
    paths: dict[tuple[str, str], Reach] = {}
    # Paths share their rests, since all routers on a path agree on it: of 1,000 sites in a row, one has 999 links.
    for source, target in routes.pairs:
        hop = routes.next_hop(source, target)
        first = reaches[link_name(source, hop)]
        paths[source, target] = first if hop == target else first.then(paths[hop, target])
    lan = topology.lan
    most = lan.rate / 8 * 4 * lan.delay
    for (source, target), there in paths.items():
        if (back := paths.get((target, source))) and topology.sites[source].workers and topology.sites[target].workers:
            round_trip_s = there.delay_s + back.delay_s + 4 * lan.delay
            most = max(most, min(lan.rate, there.rate_bps) / 8 * round_trip_s)
    return most


def settings_for(bdp_bytes: float) -> dict[str, str]:
    """Return the kernel settings that a worker's namespace needs for such a path."""
    return {
        "net.ipv4.tcp_wmem": _sizes(SENT_LEAST, SENT_BDPS * bdp_bytes),
        "net.ipv4.tcp_rmem": _sizes(RECEIVED_LEAST, RECEIVED_BDPS * bdp_bytes),
        "net.ipv4.tcp_slow_start_after_idle": "0",
    }


def _sizes(least: tuple[int, int, int], wanted_bytes: float) -> str:
    """Return the kernel's three sizes: those of `least`, the last of them raised to `wanted_bytes` or MOST_BYTES."""
    kept, first, most = least
    return f"{kept} {first} {min(max(most, int(wanted_bytes)), MOST_BYTES)}"


class Transport:
    """The TCP settings of a network's workers, which follow the network. Any thread may use it.

    Attributes:
        fitted: Whether workers get these settings, or keep the kernel's own.
        refused: The settings that a worker's kernel refused, with the reason. That worker goes on without them.
    """

    def __init__(self, fitted: bool, hosts: Callable[[], Iterable[NamespaceNode]]) -> None:
        self.fitted = fitted
        self.refused: dict[str, str] = {}
        self._hosts = hosts
        self._lock = threading.Lock()
        self._network: tuple[Topology, Routes] | None = None
        self._declared: dict[str, Reach] = {}
        self._reaches: dict[str, Reach] = {}
        self._bdp_bytes = 0.0

    @property
    def settings(self) -> dict[str, str]:
        """The settings of every worker, by name."""
        return settings_for(self._bdp_bytes) if self.fitted else {}

    def follow(self, topology: Topology, routes: Routes, states: Mapping[str, LinkState]) -> None:
        """Take over another topology with its routes and link states, and update the workers."""
        with self._lock:
            if self._network is None or self._network[0] is not topology:
                self._declared = {name: Reach.of(link) for name, link in topology.links.items()}
            self._network = topology, routes
            self._reaches = {name: reach.or_more(states[name]) for name, reach in self._declared.items()}
            self._fit_all()

    def note(self, link: str, state: LinkState) -> None:
        """Record a link's new state. Its trace is known beforehand; requested changes are not."""
        with self._lock:
            reach = self._declared[link].or_more(state) if link in self._declared else None
            if reach is not None and reach != self._reaches[link]:
                self._reaches[link] = reach
                self._fit_all()

    def fit(self, host: NamespaceNode) -> None:
        """Apply the settings in a worker's namespace. Existing connections follow them too."""
        for name, value in self.settings.items():
            try:
                host.configure([f"{name}={value}"])
            except (OSError, SettingRefused) as error:
                if host.held:  # otherwise the worker has ended
                    cause = error.__cause__ if isinstance(error, SettingRefused) else error
                    self.refused[f"{host.name}: {name}"] = getattr(cause, "strerror", None) or str(error)

    def record(self) -> dict[str, Any]:
        """Return the entry for a manifest."""
        return {
            "fitted": self.fitted,
            "largest_bdp_bytes": int(self._bdp_bytes),
            "settings": self.settings,
            "refused": self.refused,
        }

    def _fit_all(self) -> None:
        assert self._network is not None
        before = self.settings
        self._bdp_bytes = largest_bdp(*self._network, self._reaches)
        if self.settings != before:
            for host in self._hosts():
                self.fit(host)
