"""What may happen to a run while it trains, because its file says so or because a person asks for it.

Both go this way, so both are told, recorded, and said to the controller alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from testbed.api.models import By
from testbed.controller.client import AdminClient
from testbed.controller.spec import Newcomer
from testbed.emulation.standing.orders import hold
from testbed.emulation.testbed import Testbed
from testbed.link import pair_name
from testbed.planning import Pair, PhysicalLink
from testbed.run import view
from testbed.spec.event import LinkChange
from testbed.spec.topology import Topology


class Happening(Protocol):
    """Hears what happens: its kind, its target, and by whom; of a change of a link, all values that are in force over
    its file or trace by then."""

    def __call__(
        self, kind: str, target: str, by: By, *, changed: Mapping[str, float | None] | None = None
    ) -> None: ...


class WorkerPrograms(Protocol):
    """What trains, in the workers' containers."""

    def kill(self, worker: str) -> None:
        """End one at once, as a crash would."""

    def restart(self, worker: str) -> None:
        """Have one run again, ended first if it still does."""

    def one_more(self, site: str) -> AbstractContextManager[Newcomer]:
        """While inside, one more runs at a site, which the controller is to be told of. It stays, unless this is left
        by an error."""


class Changes:
    """Makes them happen, at once; `swaps` records the network swaps as the summary has them, `added` the workers that
    came to be more, each with its share of the data.

    KeyError for a link or a worker that is not there, AdminError when the controller does not take one.
    """

    def __init__(
        self,
        testbed: Testbed,
        controller: AdminClient | None,
        workers: WorkerPrograms | None,
        tell: Happening,
        before_routes: Callable[[set[str]], None],
        oracle: bool = False,
    ) -> None:
        """`controller` and `workers` are None where members are not ours; an `oracle` is told what links truly carry.
        `before_routes` is called in a swap when its new links, which it is given, are built and nothing passes them
        yet."""
        self._testbed = testbed
        self._network = testbed.network
        self._controller = controller
        self._workers = workers
        self._tell = tell
        self._before_routes = before_routes
        self._oracle = oracle
        self.swaps: list[dict[str, Any]] = []
        self.added: list[dict[str, Any]] = []

    def change(self, change: LinkChange, by: By) -> None:
        """Other values for a link, which stay in force over its trace."""
        changed = self._network.links_in_force.change(change)
        self._tell("change", change.link, by, changed=changed.values())

    def take(self, a: str, b: str, up: bool, by: By) -> None:
        """A physical pair down or up; routes follow."""
        self._network.take(a, b, up)
        self._tell("up" if up else "down", pair_name(a, b), by)
        self.inform()

    def kill(self, worker: str, by: By) -> None:
        """The end of a worker's program, as a crash would be."""
        if self._workers is not None:
            self._workers.kill(worker)
            self._tell("kill", worker, by)

    def restart(self, worker: str, by: By) -> None:
        """A worker's program, run anew."""
        if self._workers is not None:
            self._workers.restart(worker)
            self._tell("restart", worker, by)

    def add_worker(self, site: str, by: By) -> dict[str, Any]:
        """One more worker at a site, which takes part as soon as it has joined; its record. KeyError, ValueError where
        the site has no room for one."""
        if self._workers is None or self._controller is None:
            raise ValueError("members are not ours here")
        with self._workers.one_more(site) as newcomer:
            members = view.members(self._network.topology)
            self._controller.add_member(newcomer, members, *self._declared())
        worker, work = self._network.topology.last_worker(site), newcomer.job.workload
        share = {"shard": work["shard"], "shards": work["shards"]}
        self.added.append({"worker": worker.name, "site": site, "address": self._network.address(worker), **share})
        self._tell("add", worker.name, by)
        return self.added[-1]

    def change_graph(self, kind: str, by: By) -> None:
        """Another communication graph."""
        if self._controller is not None:
            self._controller.change_graph(kind)
            self._tell("graph", kind, by)

    def force(self, policy: str, options: Mapping[str, Any], by: By) -> None:
        """Another policy, whose plan comes into force whatever it saves."""
        if self._controller is not None:
            self._controller.force(policy, options)
            self._tell("policy", policy, by)

    def force_plan(self, document: Mapping[str, Any], by: By) -> None:
        """One plan, written out."""
        if self._controller is not None:
            self._controller.force("given", {"document": document})
            self._tell("plan", "given", by)

    def swap(self, topology: Topology, name: str, by: By) -> dict[str, Any]:
        """Another network, which `name` is the file of; the swap's record."""
        requested = time.time()
        for added in self.added:
            topology = topology.with_worker(added["site"])
        done = self._network.swap(topology, self._before_routes)
        self._testbed.replay.follow(topology.links.values())
        self.inform()
        self._tell("swap", topology.name, by)
        changes = {"added": done.added, "removed": done.removed, "changed": done.changed}
        record = {"kind": "network", "target": topology.name, "file": name, "requested_s": requested, **changes}
        self.swaps.append({**record, "active_s": requested + done.seconds})
        return self.swaps[-1]

    def pause(self, paused: bool, by: By) -> None:
        """The replay of traces, held or going on; so do the events whose time is yet to come."""
        hold(self._testbed, paused)
        self._tell("pause" if paused else "resume", self._network.topology.name, by)

    def inform(self) -> None:
        """Tell the controller of the underlay as it is declared to be now: it is to measure what traces do, unless it
        is an oracle."""
        if self._controller is not None:
            self._controller.change_network(*self._declared())

    def _declared(self) -> tuple[dict[str, PhysicalLink], dict[Pair, tuple[str, ...]]]:
        """The underlay's links, and the routes between workers."""
        topology = self._network.topology
        down = self._network.links_in_force.down
        states = self._network.links_in_force.states() if self._oracle else view.declared_states(topology)
        states = {name: state for name, state in states.items() if name not in down}
        return view.physical_links(topology, states), view.member_routes(topology, self._network.routes)
