"""A testbed whose parts are on hosts. To a run it is a Testbed, with a network, links, a shaper and a replay.

This process holds no part of the network: it passes requests on to the hosts. A change of a link goes to the host where
the link begins, and is recorded here as on one machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from testbed.emulation import label
from testbed.emulation.links.links import Links, Observer
from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.links.replay import Replay
from testbed.emulation.network.difference import Difference
from testbed.emulation.network.network import Network
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.share import OWN
from testbed.emulation.network.swap import BeforeRoutes, NetworkSwap, pairs_of
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.shaping.base import Applied, FutureStates, LinkCounters, Port, Shaper, ShapingError
from testbed.emulation.shaping.probe import BACKENDS
from testbed.emulation.testbed import Step, Testbed
from testbed.link import LinkState, link_ends, link_name
from testbed.scaleout.split.cut_links import check_delay, cut_hosts, least_delay_s, measure_cut_links
from testbed.scaleout.split.host import PartFacts, PartRequest, PartSettings
from testbed.scaleout.split.hosts import HostLost, SplitHosts
from testbed.scaleout.split.plan import SplitPlan
from testbed.scaleout.split.verdict import HostSamples, clock_bound_s, reasons
from testbed.spec.errors import Fault, SpecError
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link, Topology
from testbed.spec.units import count

#: The seconds between telling the hosts and the beginning of replay: by then the slowest host has been told.
BEGIN_S = 1.0


class SplitTestbed(Testbed):
    """A Testbed whose network is split over hosts, which take each step together."""

    network: SplitNetwork
    budgets_checked = True

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
        """Claim the network's name here and on every host.

        Raises:
            FileExistsError: A network of this name is up on a host.
            EmulationError: A host can't emulate its part, or the hosts' backends differ.
        """
        self._stack.enter_context(label.labelled(self.name))
        self.control.mkdir(mode=0o700)
        with self._step(f"{count(len(self._plan.hosts), 'host')}, shaping backends probed"):
            self._parts: dict[str, PartFacts] = self._hosts.each("open", lambda host: (self._request(host),))
        self._samples = HostSamples(self._hosts, self._plan.floors, self._put_in_force)
        self.network = SplitNetwork(self.name, self._plan, self._hosts, self._samples, self._parts)
        self._stack.callback(self.network.stop)
        self.replay = SplitReplay(self.network.links_in_force, self._hosts, self._samples)
        self._hosts.each("watch", lambda host: (self._plan.neighbours(host),))

    def build(self) -> None:
        """Build every host's part, and begin to fetch the hosts' samples."""
        cut = len(cut_hosts(self._plan.assignment.host_of, self._topology.links))
        with self._step(f"{count(len(self._topology.links), 'directed link')}, {cut} of them cut"):
            self.network.build()
        self._samples.start()
        self._stack.callback(self._samples.stop)

    def measure(self, links: Iterable[str] | None = None) -> dict[str, LinkFidelity]:
        """Measure links: each host those within it, all hosts at once; then the cut links one after another."""
        wanted = set(self.network.links_in_force.states() if links is None else links)
        found: dict[str, LinkFidelity] = self._hosts.merged("part.measure", lambda _: (wanted,))
        states, host_of = self.network.links_in_force.states(), self._plan.assignment.host_of
        cut = [name for name in cut_hosts(host_of, states) if name in wanted]
        return found | measure_cut_links(self._hosts, host_of, states, cut, self._plan.underlay.mtu)

    def record(self) -> dict[str, Any]:
        """Return the manifest's entry of the hosts: the plan, each host's part, and what is known of clocks by now."""
        seen = self._samples.host_seen()
        return {
            "hosts": {
                **self._plan.record(),
                "parts": {name: asdict(facts) for name, facts in self._parts.items()},
                "clocks": {name: asdict(host.clock) for name, host in seen.items() if host.clock is not None},
                "time_line_bound_s": clock_bound_s(seen),
            }
        }

    def host_reasons(self) -> list[str]:
        """Return why figures cannot be trusted because of the hosts, their clocks or the network between them."""
        return reasons(self._samples.paths_seen(self._plan.cut_hosts), self._samples.host_seen())

    def _request(self, host: str) -> PartRequest:
        return PartRequest(
            name=f"{self.name}-{host}",
            topology=self._topology,
            share=self._plan.share(host, self.name, OWN),
            floors=self._plan.floors,
            settings=self._settings,
        )

    def _put_in_force(self, at_s: float, link: str, state: LinkState) -> None:
        self.network.links_in_force.put_in_force(link, state)
        self._observer(at_s, link, state)


class SplitNetwork(Network):
    """A network that is split into parts, one on each host."""

    links_in_force: SplitLinks

    def __init__(
        self, name: str, plan: SplitPlan, hosts: SplitHosts, samples: HostSamples, parts: Mapping[str, PartFacts]
    ) -> None:
        """Prepare the network of these parts. Raises ShapingError where the hosts' backends differ."""
        shaper = HostsShaper(parts, samples)
        self._plan, self._hosts, self._samples = plan, hosts, samples
        super().__init__(name, plan.topologies[0], shaper, lambda *_: None, share=plan.share("", name, OWN))
        self.switch = next(iter(parts.values())).switch
        self.links_in_force = SplitLinks(shaper, hosts, plan)

    def build(self) -> None:
        """Build every host's routers, links and ends of tunnels."""
        self._hosts.each("part.build")
        for link in self.topology.links.values():
            self.links_in_force.add(link)
        self.set_routes(Routes.over(self.topology))

    def join(self, holders: Mapping[str, ProcessIdentity]) -> None:
        """Do nothing: the hosts connect their workers."""

    def leave(self, workers: Iterable[str]) -> None:
        """Do nothing: the hosts disconnect their workers."""

    def arrived_bytes(self) -> dict[str, int]:
        """Return, for each link, the bytes that had arrived at its end by the hosts' newest samples."""
        return self._samples.merged("bytes")

    def take(self, a: str, b: str, up: bool) -> None:
        """Take a physical pair of links down or up on every host; each host then updates its routes."""
        self._hosts.each("part.network.take", lambda _: (a, b, up))
        self.links_in_force.take((link_name(a, b), link_name(b, a)), up)
        self.set_routes(Routes.over(self.topology, self.links_in_force.down))

    def check_links(self, topology: Topology) -> None:
        """Raise ShapingError if a link can't have its values in a row of its trace, as when it is below its floor."""
        super().check_links(topology)
        for name, link in topology.links.items():
            check_delay(name, least_delay_s(link), self._plan.floor_s(name))

    def swap(
        self,
        topology: Topology,
        before_routes: BeforeRoutes = lambda _: None,
        holders: Mapping[str, ProcessIdentity] | None = None,
    ) -> NetworkSwap:
        """Swap to another network with the same workers: every host takes a step before any takes the next."""
        began, links = time.monotonic(), Difference.between(self.topology, topology).links
        if {one.name for one in topology.workers} != {one.name for one in self.topology.workers}:
            raise ValueError(
                f"{topology.file}: a swap can't add or remove workers; name exactly those of {self.topology.file}"
            )
        if unplaced := sorted(topology.sites.keys() - self.share.host_of.keys()):
            rule = "no host of this run has this site, since neither the experiment's topology nor its swaps have it"
            remedy = "no such site; or name this file in a `swap` among the experiment's `events`, and start again"
            raise SpecError(topology.file, [Fault(f"sites.{unplaced[0]}", rule, remedy)])
        self.check_links(topology)
        self.addressing.know(topology.sites, pairs_of(topology))
        step: Callable[..., Any] = self._hosts.each
        try:
            step("part.swap_step", lambda _: ("build", topology))
            for name in links.added:
                self.links_in_force.add(topology.links[name])
            before_routes(set(links.added))
            step("part.swap_step", lambda _: ("move routes",))
        except Exception:
            step("part.swap_step", lambda _: ("undo",))
            for name in links.added:
                self.links_in_force.remove(name)
            raise
        step("part.swap_step", lambda _: ("remove",))
        self.links_in_force.configure(topology.links[name] for name in links.changed)
        for name in links.removed:
            self.links_in_force.remove(name)
        self.topology = topology
        self.set_routes(Routes.over(topology, self.links_in_force.down))
        return NetworkSwap(links.added, links.removed, links.changed, seconds=time.monotonic() - began)


class SplitLinks(Links):
    """The links of all hosts. A change of a link goes to the host where the link begins, and is then recorded here."""

    def __init__(self, shaper: Shaper, hosts: SplitHosts, plan: SplitPlan) -> None:
        super().__init__(shaper, lambda *_: None)
        self._hosts, self._plan = hosts, plan

    def check_values(self, change: LinkChange) -> None:
        """Raise ShapingError if the link can't have these values, as when its delay is below its floor."""
        super().check_values(change)
        if change.delay is not None:
            check_delay(change.link, change.delay, self._plan.floor_s(change.link))

    def change(self, change: LinkChange) -> LinkChange:
        """Change a link on its host, and then in the records of this and the other hosts.

        Raises the error of the link's host, and then nothing has changed; or that of another host, which lacks the
        change in its records.
        """
        own = self._plan.assignment.host_of[link_ends(change.link)[0]]
        if change.link in self.requested():
            state = self._hosts.call(own, "part.change", change)
        done = super().change(change)  # its error for an unknown link lists the links that there are
        for other in self._hosts.hosts.keys() - {own}:
            self._hosts.call(other, "part.note", change.link, state)
        return done

    def put_in_force(self, link: str, state: LinkState) -> None:
        """Record the state that a host has put in force."""
        with self._lock:
            if link in self._in_force:
                self._in_force[link] = state

    def lateness(self, newest: bool = False) -> dict[str, list[float]]:
        """Return the seconds by which each link's rows were late on its host."""
        return self._hosts.merged("part.network.links_in_force.lateness", lambda _: (newest,))


class SplitReplay(Replay):
    """A replay on every host, each by itself; all begin at one moment."""

    def __init__(self, links: Links, hosts: SplitHosts, samples: HostSamples) -> None:
        super().__init__(links)
        self._hosts, self._samples = hosts, samples

    def start(self, links: Iterable[Link], at_s: float | None = None) -> None:
        """Begin in BEGIN_S, by each host's own clock. Raises HostLost for a host whose clock was never read."""
        self._began = time.monotonic() + BEGIN_S if at_s is None else at_s
        clocks = {name: clock for name in self._hosts.hosts if (clock := self._hosts.clock(name)) is not None}
        if unread := self._hosts.hosts.keys() - clocks.keys():
            lost = min(unread)
            raise HostLost(f"{lost} is lost: it answers no probe, so its clock was never read", host=lost)
        self._hosts.each("part.begin", lambda host: (clocks[host].theirs(self._began or 0.0),))
        self._samples.begun(clocks)

    def follow(self, links: Iterable[Link]) -> None:
        """Do nothing: each host follows as its routes move."""

    def pause(self) -> None:
        """Pause the traces of every host."""
        if self._held_at_s is None:
            self._held_at_s = self.elapsed_s
            self._hosts.each("part.replay.pause")

    def resume(self, links: Iterable[Link]) -> None:
        """Continue the traces of every host from where they were paused."""
        if self._held_at_s is not None:
            self._began, self._held_at_s = time.monotonic() - self._held_at_s, None
            self._hosts.each("part.resume")

    @property
    def failure(self) -> Exception | None:
        """None: hosts report a failed replay with their samples."""
        return None

    def stop(self) -> None:
        """Do nothing: hosts end their replays with their parts, and the states in force stay."""


class HostsShaper(Shaper):
    """A Shaper that returns the counters and failures of all hosts' shapers; hosts attach and apply by themselves."""

    def __init__(self, parts: Mapping[str, PartFacts], samples: HostSamples) -> None:
        """Prepare to read the hosts' shapers, which must all have one backend.

        Raises:
            ShapingError: The hosts' backends differ, but figures of one run have one tolerance.
        """
        first = next(iter(parts.values()))
        if len({one.backend for one in parts.values()}) > 1:
            backends = ", ".join(f"{host} {one.backend}" for host, one in parts.items())
            raise ShapingError(f"hosts shape differently ({backends}): write `backend: userspace` in the experiment")
        self.name, self.most_jitter_s = first.backend, BACKENDS[first.backend].most_jitter_s
        self._realtime = first.realtime_shaping
        self._samples = samples

    @property
    def realtime(self) -> bool:
        """True if the first host's shaping process has real-time priority."""
        return self._realtime

    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        """Do nothing: hosts attach their links as they build their parts."""

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        """Do nothing: SplitLinks asks the hosts for changes."""

    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        """Do nothing: hosts replay their traces."""

    def applied(self) -> list[Applied]:
        """Return nothing: hosts send the states that took effect with their samples."""
        return []

    def detach(self, link: str) -> None:
        """Do nothing: hosts detach links as they change their parts."""

    def counters(self) -> dict[str, LinkCounters]:
        """Return every link's counters by the hosts' newest samples."""
        return self._samples.merged("counters")

    def failure(self) -> str | None:
        """Return which host is lost, or whose part has broken; None if all is well."""
        return self._samples.failure

    def close(self) -> None:
        """Do nothing: hosts close their shapers with their parts."""
