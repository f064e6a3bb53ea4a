"""Which peers are connected to a member: on which channels, and who is gone. No lock of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from testbed.plan import Plan
from testbed.sync.transport import DIRECT


class Presence:
    """Of peers with `streams` direct connections each. `gone` says of each that is why."""

    def __init__(self, streams: int) -> None:
        self.gone: dict[str, str] = {}
        self._streams = streams
        self._channels: Counter[int] = Counter()
        self._drained: set[int] = set()
        self._ended: Counter[str] = Counter()

    def opened(self, channel: int) -> bool:
        """A peer wants to send on a channel; False when this member is done with forwarding what comes there."""
        welcome = channel not in self._drained
        self._channels[channel] += welcome
        return welcome

    def closed(self, peer: str, channel: int, error: str) -> None:
        """A peer's connection ended. One that ended well may have ended before others to the same peer, which still
        bring what is owed."""
        self._channels[channel] -= 1
        if channel == DIRECT:
            self._ended[peer] += 1
            if error or self._ended[peer] == self._streams:
                self.gone[peer] = error or "closed its connection"

    def quiet(self, channel: int) -> bool:
        """Whether nobody sends on a channel now."""
        return not self._channels[channel]

    def drain(self, channel: int) -> None:
        """Let nobody send on a channel any more."""
        self._drained.add(channel)

    def blocking(self, missing: Mapping[str, str], plan: Plan, member: str) -> str | None:
        """Return a lost peer that `member` waits for, or None when all may still bring what they owe.

        What a peer sent may still be with those who forward for it.
        """
        for peer in missing:
            routes = [route for route in plan.auxiliary if (route.source, route.target) == (peer, member)]
            if peer in self.gone and {via for route in routes for via in route.via} <= self.gone.keys():
                return peer
        return None
