"""A testbed of which every part is on a host: to who runs an experiment it is a Testbed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from testbed.emulation import label
from testbed.emulation.links.links import Observer
from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.testbed import Step, Testbed
from testbed.link import LinkState
from testbed.scaleout.split.measure import measure_cut
from testbed.scaleout.split.network import SplitNetwork
from testbed.scaleout.split.plan import SplitPlan
from testbed.scaleout.split.record import SplitRecord
from testbed.scaleout.split.replay import SplitReplay
from testbed.scaleout.split.split import HostSamples, SplitHosts
from testbed.scaleout.split.testbed import PartRequest, PartSettings
from testbed.spec.units import count


class SplitTestbed(Testbed):
    """The steps of a Testbed, each of all hosts."""

    network: SplitNetwork
    placed = True

    def __init__(
        self,
        name: str,
        plan: SplitPlan,
        hosts: SplitHosts,
        settings: PartSettings,
        observer: Observer,
        step: Step,
    ) -> None:
        super().__init__(plan.topologies[0], name=name, backend=settings.backend, observer=observer, step=step)
        self._plan, self._hosts, self._settings = plan, hosts, settings

    def open(self) -> None:
        """Make the name ours here and on every host. FileExistsError, EmulationError; ShapingError where hosts do not
        shape alike."""
        self._stack.enter_context(label.labelled(self.name))
        self.control.mkdir(mode=0o700)
        with self._step(f"{count(len(self._plan.hosts), 'host')}, shaping backends probed"):
            parts = self._hosts.each("open", lambda host: (self._request(host),))
        self._record = SplitRecord(self._plan, parts)
        self._samples = HostSamples(self._hosts, self._plan.floors, self._put_in_force)
        self.network = SplitNetwork(self.name, self._plan, self._hosts, self._samples, parts)
        self._stack.callback(self.network.stop)
        self.replay = SplitReplay(self.network.links_in_force, self._hosts, self._samples)
        self._hosts.each("watch", lambda host: (self._plan.neighbours(host),))

    def build(self) -> None:
        cut = len(self._plan.placing.cut_links(self._topology.links))
        with self._step(f"{count(len(self._topology.links), 'directed link')}, {cut} of them cut"):
            self.network.build()
        self._samples.start()
        self._stack.callback(self._samples.stop)

    def measure(self, links: Iterable[str] | None = None) -> dict[str, LinkFidelity]:
        """Links within hosts by each host, all at once; those that are cut one after another."""
        wanted = set(self.network.links_in_force.states() if links is None else links)
        found: dict[str, LinkFidelity] = {}
        for inner in self._hosts.each("part.measure", lambda _: (wanted,)).values():
            found |= inner
        states = self.network.links_in_force.states()
        cut = [name for name in self._plan.placing.cut_links(states) if name in wanted]
        return found | measure_cut(self._hosts, self._plan.placing.host_of, states, cut, self._plan.underlay.mtu)

    def record(self) -> dict[str, Any]:
        return self._record.of(self._samples)

    def host_reasons(self) -> list[str]:
        return self._record.reasons(self._samples)

    def _request(self, host: str) -> PartRequest:
        return PartRequest(
            name=f"{self.name}-{host}",
            topology=self._topology,
            share=self._plan.share(host, self.name, Path("/proc/self/ns/net")),
            floors=self._plan.floors,
            settings=self._settings,
        )

    def _put_in_force(self, at_s: float, link: str, state: LinkState) -> None:
        self.network.links_in_force.put_in_force(link, state)
        self._observer(at_s, link, state)
