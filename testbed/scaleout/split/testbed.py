"""A testbed that holds one host's share of a network, and what it is told of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from testbed.emulation.links.links import Observer
from testbed.emulation.network.network import Network
from testbed.emulation.network.share import Share
from testbed.emulation.shaping import Shaper, ShapingError
from testbed.emulation.testbed import Backend, Testbed
from testbed.link import link_ends
from testbed.scaleout.split.placing import Pair
from testbed.scaleout.split.tunnel import TunnelShaper
from testbed.scaleout.underlay import too_near
from testbed.spec.event import LinkChange
from testbed.spec.topology import Topology


@dataclass(frozen=True, slots=True)
class PartSettings:
    """What all parts of a network have in common, beside the network."""

    backend: Backend = "auto"
    fit_transport: bool = True
    workers: Literal["containers", "namespaces"] = "containers"


@dataclass(frozen=True)
class PartRequest:
    """What a host is told of the network and of its part in it.

    `floors` has, for each pair of hosts, the seconds that are taken off the delay of every link cut between them.
    """

    name: str
    topology: Topology
    share: Share
    floors: Mapping[Pair, float] = field(default_factory=dict)
    settings: PartSettings = PartSettings()

    def floor_s(self, link: str) -> float:
        """What is taken off a link's delay; 0 where both of its sites are on one host."""
        hosts = frozenset(self.share.host_of[site] for site in link_ends(link) if site in self.share.host_of)
        return self.floors[hosts] if len(hosts) > 1 else 0.0

    def check(self, change: LinkChange) -> None:
        """ShapingError for a delay below the link's floor."""
        floor_s = self.floor_s(change.link)
        if change.delay is not None and change.delay < floor_s:
            raise ShapingError(too_near(change.link, change.delay, floor_s))


class PartTestbed(Testbed):
    """A testbed that holds a host's share of a network."""

    def __init__(self, request: PartRequest, observer: Observer) -> None:
        super().__init__(
            request.topology,
            name=request.name,
            backend=request.settings.backend,
            workers=request.settings.workers,
            fit_transport=request.settings.fit_transport,
            observer=observer,
        )
        self._request = request

    def _network(self, topology: Topology, shaper: Shaper) -> Network:
        request = self._request
        over = TunnelShaper(shaper, request.floor_s)
        return Network(self.name, topology, over, self._observer, request.settings.fit_transport, request.share)
