"""The links of a network that is up, by name, for programs that read and change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.emulation.shaping import LinkCounters
from testbed.link import LinkState, NoSuchLink, find_link, link_ends
from testbed.spec.event import LinkChange
from testbed.spec.model import validate

if TYPE_CHECKING:  # importing it needs Mininet, which `simulate` and `report` do without
    from testbed.emulation.network.network import Network


@dataclass(frozen=True, slots=True)
class LiveLink:
    """A directed link of a network that is up."""

    name: str
    _network: Network

    @property
    def state(self) -> LinkState:
        """The state in force: `rate_bps` in bit/s of frames, `delay_s` and `jitter_s` in seconds, one way."""
        return self._network.links_in_force.states()[self.name]

    @property
    def counters(self) -> LinkCounters:
        """The packets and bytes that the link has carried and dropped since it was made."""
        return self._network.shaper.counters()[self.name]

    def change(
        self,
        *,
        rate: str | None = None,
        delay: str | None = None,
        jitter: str | None = None,
        loss: str | None = None,
    ) -> LinkState:
        """Change values in place, keep the packets waiting in the link, and return the state in force.

        Values are written as in a topology file: `rate="5mbit"`, `delay="20ms"` (one way), `loss="0.1%"`. Omitted
        values stay. The values override the link's trace until a swap changes the link.

        Raises:
            SpecError: A value is invalid.
        """
        given = {"rate": rate, "delay": delay, "jitter": jitter, "loss": loss}
        values = {name: value for name, value in given.items() if value is not None}
        change = validate(LinkChange, {"link": self.name, **values}, Path(self.name))
        self._network.links_in_force.change(change)
        return self.state

    def take_down(self) -> LinkState:
        """Take down the physical pair of which this link is one direction, update routes, and return the state."""
        return self._take(up=False)

    def bring_up(self) -> LinkState:
        """Bring both directions of the physical pair up, update routes, and return the state."""
        return self._take(up=True)

    def _take(self, up: bool) -> LinkState:
        self._network.take(*link_ends(self.name), up)
        return self.state


class LiveLinks(Mapping[str, LiveLink]):
    """The links that are up, by name: `links["paris->tokyo"]`, `links["paris-tokyo"]` or `links["paris", "tokyo"]`.

    A swap may add and remove links.
    """

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getitem__(self, name: str | Sequence[str]) -> LiveLink:
        """Return the link of a name, `a->b` or `a-b`, or of its two sites. A KeyError lists the links that exist."""
        try:
            return LiveLink(find_link(name, self._network.topology.links), self._network)
        except NoSuchLink as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._network.topology.links)

    def __len__(self) -> int:
        return len(self._network.topology.links)
