"""The links of a network that is up, by name, for a program that looks at them and changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation.network.network import Network
from testbed.emulation.shaping import LinkCounters
from testbed.link import LinkState, NoSuchLink, find_link, link_ends
from testbed.spec.event import LinkChange
from testbed.spec.model import validate


@dataclass(frozen=True, slots=True)
class LiveLink:
    """A directed link of a network that is up."""

    name: str
    _network: Network

    @property
    def state(self) -> LinkState:
        """What is in force now: `rate_bps` in bit/s of frames, `delay_s` and `jitter_s` in seconds, one way."""
        return self._network.links_in_force.states()[self.name]

    @property
    def counters(self) -> LinkCounters:
        """What the link has carried and dropped since it was made, in packets, bytes and seconds."""
        return self._network.shaper.counters()[self.name]

    def change(
        self,
        *,
        rate: str | None = None,
        delay: str | None = None,
        jitter: str | None = None,
        loss: str | None = None,
    ) -> LinkState:
        """Put other values in force, in place: what waits in the link is kept. The state in force then.

        Values are written as in a topology file: `rate="5mbit"`, `delay="20ms"` (one way), `loss="0.1%"`. What is left
        out stays. They hold over the link's trace until a swap changes the link. SpecError for a value that cannot be.
        """
        given = {"rate": rate, "delay": delay, "jitter": jitter, "loss": loss}
        values = {name: value for name, value in given.items() if value is not None}
        change = validate(LinkChange, {"link": self.name, **values}, Path(self.name))
        self._network.links_in_force.change(change)
        return self.state

    def take_down(self) -> LinkState:
        """Cut the physical pair that this link is one direction of; routes follow. The state in force then."""
        return self._take(up=False)

    def bring_up(self) -> LinkState:
        """Mend the physical pair, both directions of it; routes follow. The state in force then."""
        return self._take(up=True)

    def _take(self, up: bool) -> LinkState:
        self._network.take(*link_ends(self.name), up)
        return self.state


class LiveLinks(Mapping[str, LiveLink]):
    """The links that are up now, by name: `links["paris->tokyo"]`, also written `links["paris-tokyo"]` or
    `links["paris", "tokyo"]`. A swap may add and remove some."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getitem__(self, name: str | Sequence[str]) -> LiveLink:
        """Return a link. KeyError, which names those that there are, when this is none of them."""
        try:
            return LiveLink(find_link(name, self._network.topology.links), self._network)
        except NoSuchLink as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._network.topology.links)

    def __len__(self) -> int:
        return len(self._network.topology.links)
