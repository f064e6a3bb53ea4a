"""What every link carried, second by second, as a run samples it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import floor, inf
from typing import Any

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.planning import Pair
from testbed.simulation.event_queue import SimulatedClocks
from testbed.simulation.network import NetworkState
from testbed.simulation.round_model import SimulatedRound, Transfer

#: As a run's sampler takes them.
PERIOD_S = 1.0


class Traffic:
    """Counts bytes of frames by link; `record` takes a sample for each second that is over."""

    def __init__(self, clocks: SimulatedClocks, record: Callable[[Mapping[str, Any]], None]) -> None:
        self._clocks = clocks
        self._record = record
        self._second = 0
        self._coming: dict[int, dict[str, float]] = {}
        self._bytes: dict[str, float] = {}

    def add(self, done: SimulatedRound) -> None:
        """A round's transfers, each counted when the last of it was sent."""
        for pair, its in done.transfers.items():
            self.carry(pair, its, done.network)

    def carry(self, pair: Pair, its: Iterable[Transfer], network: NetworkState) -> None:
        """What a member sent to another over a network."""
        a, b = (network.sites[name] for name in pair)
        links = network.routes.links(a, b) if network.routes.reach(a, b) else ()
        for chunk in its if links else ():
            second = self._coming.setdefault(floor(chunk.ended_s / PERIOD_S), {})
            for link in links:
                second[link] = second.get(link, 0.0) + chunk.bytes * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES

    def sample(self, until_s: float = inf) -> None:
        """Take the samples of all seconds that were over by then, or of all that something was sent in."""
        last = max(self._coming, default=self._second) + 1 if until_s == inf else floor(until_s / PERIOD_S)
        for second in range(self._second, last):
            for link, size in self._coming.pop(second, {}).items():
                self._bytes[link] = self._bytes.get(link, 0.0) + size
            self._record(
                {
                    "at_s": self._clocks.zero_s + (second + 1) * PERIOD_S,
                    "clock_s": (second + 1) * PERIOD_S,
                    "bytes": {link: round(size) for link, size in self._bytes.items()},
                    "unshaped_bytes": {},
                    "busy_s": {},
                    "cpu": None,
                }
            )
        self._second = max(self._second, last)
