"""TCP's buffers in the workers' namespaces, as large as the network's longest and widest path needs them.

A connection sends no more in a round trip than its buffers hold. Linux lets a sender's grow to 4 MiB, of which two
thirds to three quarters are payload on its way: over 140 Mbit/s and 218 ms, 3.8 MB, that was 107 Mbit/s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

from testbed.emulation.network.node import NamespaceNode, SettingRefused
from testbed.emulation.network.routing import Routes
from testbed.link import LinkState, link_name
from testbed.spec.topology import Link, Topology

#: What a sender may hold, in bandwidth-delay products. Slow start has four of them out when it hears of the first loss
#: (the path and its queue, of one each, were full a round trip before), and the kernel counts up to 2,304 bytes of
#: memory for 1,448 of payload. Measured over 140 Mbit/s and 218 ms, of the ideal goodput: with six, BBR 95 % and reno
#: 99.8 %; with four, BBR 88 to 93 %, for what was sent past a hole filled the buffer until the hole was mended.
SENT_BDPS = 6

#: Of its buffer a receiver announces half, or what its packets' share of payload leaves of it: so it is never the one
#: that limits.
RECEIVED_BDPS = 2 * SENT_BDPS

#: What the kernel begins with, and the least that it lets them grow to with its own settings: short paths stay as they
#: were. Where a host has other limits, a run's are still these, the same on every host.
SENT_LEAST = (4096, 16384, 4 << 20)
RECEIVED_LEAST = (4096, 131072, 6 << 20)

#: TCP's window ends at a gibibyte.
MOST_BYTES = 1 << 30


class Reach(NamedTuple):
    """The most that a directed link does, over its trace: its rate, and the time that packets take."""

    rate_bps: float
    delay_s: float

    @classmethod
    def of(cls, link: Link) -> Self:
        """Of what the link's file has for it. There may be a million rows, so none is made a state."""
        rows = link.trace.rows if link.trace is not None else ()
        rate_bps = max((row.rate_bps or 0.0 for row in rows), default=0.0)
        delay_s = max((row.delay_s or 0.0 for row in rows), default=0.0)
        jitter_s = max((row.jitter_s or 0.0 for row in rows), default=0.0)
        own = link.state
        return cls(max(rate_bps, own.rate_bps), max(delay_s, own.delay_s) + max(jitter_s, own.jitter_s))

    def then(self, rest: Reach) -> Self:
        """That of a path which begins with this link."""
        return type(self)(min(self.rate_bps, rest.rate_bps), self.delay_s + rest.delay_s)

    def or_more(self, state: LinkState) -> Self:
        """The same where a state asks for no more."""
        return type(self)(max(self.rate_bps, state.rate_bps), max(self.delay_s, state.delay_s + state.jitter_s))


def largest_bdp(topology: Topology, routes: Routes, reaches: Mapping[str, Reach]) -> float:
    """The largest bandwidth-delay product of any way from a worker to another and back, in bytes, where links reach
    that far."""
    paths: dict[tuple[str, str], Reach] = {}
    # All routers on a path agree on the rest of it: of 1,000 sites in a row, the longest has 999 links.
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
    """The kernel settings that a worker's namespace needs for such a path."""
    return {
        "net.ipv4.tcp_wmem": _sizes(SENT_LEAST, SENT_BDPS * bdp_bytes),
        "net.ipv4.tcp_rmem": _sizes(RECEIVED_LEAST, RECEIVED_BDPS * bdp_bytes),
        "net.ipv4.tcp_slow_start_after_idle": "0",
    }


def _sizes(least: tuple[int, int, int], wanted_bytes: float) -> str:
    """What a socket is kept even when memory is short, what it begins with, and what it may grow to."""
    kept, first, most = least
    return f"{kept} {first} {min(max(most, int(wanted_bytes)), MOST_BYTES)}"


class Transport:
    """What a network's workers have in force; it follows the network. Any thread may speak to it.

    With `fitted` false it is what their kernel gives them. `refused` has the settings that a worker's kernel did not
    take, and why; that worker goes on without them.
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
        """By name, what every worker is given."""
        return settings_for(self._bdp_bytes) if self.fitted else {}

    def follow(self, topology: Topology, routes: Routes, states: Mapping[str, LinkState]) -> None:
        """The network has these links and routes from now on, and its links these states."""
        with self._lock:
            if self._network is None or self._network[0] is not topology:
                self._declared = {name: Reach.of(link) for name, link in topology.links.items()}
            self._network = topology, routes
            self._reaches = {name: reach.or_more(states[name]) for name, reach in self._declared.items()}
            self._fit_all()

    def note(self, link: str, state: LinkState) -> None:
        """A link has this state now. What its trace has was known, what is asked of it meanwhile was not."""
        with self._lock:
            reach = self._declared[link].or_more(state) if link in self._declared else None
            if reach is not None and reach != self._reaches[link]:
                self._reaches[link] = reach
                self._fit_all()

    def fit(self, host: NamespaceNode) -> None:
        """Put the settings in force in a worker's namespace. Connections that are there already go by them too."""
        for name, value in self.settings.items():
            try:
                host.configure([f"{name}={value}"])
            except (OSError, SettingRefused) as error:
                if host.held:  # else the worker has ended
                    cause = error.__cause__ if isinstance(error, SettingRefused) else error
                    self.refused[f"{host.name}: {name}"] = getattr(cause, "strerror", None) or str(error)

    def record(self) -> dict[str, Any]:
        """What a manifest says of it."""
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
