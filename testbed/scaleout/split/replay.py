"""Replay on several hosts, from one moment on."""

from __future__ import annotations

import time
from collections.abc import Iterable

from testbed.emulation.links.links import Links
from testbed.emulation.links.replay import Replay
from testbed.scaleout.split.process import HostLost
from testbed.scaleout.split.split import HostSamples, SplitHosts
from testbed.spec.topology import Link

#: Replay begins so long after hosts are told: the slowest has heard of it by then.
BEGIN_S = 1.0


class SplitReplay(Replay):
    """Replays on every host, which does so by itself; all begin at one moment."""

    def __init__(self, links: Links, hosts: SplitHosts, samples: HostSamples) -> None:
        super().__init__(links)
        self._hosts, self._samples = hosts, samples

    def start(self, links: Iterable[Link], at_s: float | None = None) -> None:
        """In a second, by each host's own clock. HostLost, of one whose clock was never read."""
        self._began = time.monotonic() + BEGIN_S if at_s is None else at_s
        clocks = {name: clock for name in self._hosts.hosts if (clock := self._hosts.clock(name)) is not None}
        if unread := self._hosts.hosts.keys() - clocks.keys():
            raise HostLost(
                f"{min(unread)} is lost: its clock was never read, since it answers no probe",
                rule="lost",
                host=min(unread),
            )
        self._hosts.each("part.begin", lambda host: (clocks[host].theirs(self._began or 0.0),))
        self._samples.begun(clocks)

    def follow(self, links: Iterable[Link]) -> None:
        """Hosts follow as their routes move."""

    def pause(self) -> None:
        if self._held_at_s is None:
            self._held_at_s = self.elapsed_s
            self._hosts.each("part.pause")

    def resume(self, links: Iterable[Link]) -> None:
        if self._held_at_s is not None:
            self._began, self._held_at_s = time.monotonic() - self._held_at_s, None
            self._hosts.each("part.resume")

    @property
    def failure(self) -> Exception | None:
        """Hosts say so with their samples."""
        return None

    def stop(self) -> None:
        """Hosts end theirs with their parts; the states in force stay."""
