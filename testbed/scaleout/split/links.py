"""The links of a network whose parts are on hosts."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.emulation.links.links import REMEMBERED, Links
from testbed.emulation.shaping.base import Shaper
from testbed.link import LinkState, link_ends
from testbed.scaleout.split.split import SplitHosts
from testbed.spec.event import LinkChange


class SplitLinks(Links):
    """The links of all hosts. What is asked of one is asked of the host where it begins, and then known here."""

    def __init__(self, shaper: Shaper, hosts: SplitHosts, host_of: Mapping[str, str]) -> None:
        super().__init__(shaper, lambda *_: None)
        self._hosts, self._host_of = hosts, host_of

    def change(self, change: LinkChange) -> LinkChange:
        """Raises what the host does, and nothing has changed."""
        own = self._host_of[link_ends(change.link)[0]]
        if change.link in self.asked():
            state = self._hosts.call(own, "part.change", change)
            for other in self._hosts.hosts.keys() - {own}:
                self._hosts.call(other, "part.note", change.link, state)
        return super().change(change)  # or says which links there are

    def put_in_force(self, link: str, state: LinkState) -> None:
        """A host says that a link has another state."""
        with self._lock:
            if link in self._in_force:
                self._in_force[link] = state

    def lateness(self, last: int = REMEMBERED) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for late in self._hosts.each("part.lateness").values():
            found |= {link: its[-last:] for link, its in late.items()}
        return found
