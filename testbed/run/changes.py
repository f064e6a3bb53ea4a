"""Carries out what is asked of a run while it trains, by its file or by a person: both are told and recorded alike."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from testbed.api.models import By
from testbed.api.problem import MISSING, NOT_HERE, ApiProblem
from testbed.api.requests import (
    AddWorker,
    ChangeGraph,
    ChangeLinks,
    ForcePlan,
    ForcePolicy,
    KillWorker,
    PauseReplay,
    Request,
    RestartWorker,
    Stop,
    SwapNetwork,
)
from testbed.controller.client import ControllerClient
from testbed.controller.model.spec import Newcomer
from testbed.emulation.daemon.handlers import change_links, changes_of, check_file, check_site, pairs_of, pause_replay
from testbed.emulation.testbed import Testbed
from testbed.planning import Pair, PhysicalLink
from testbed.run import view
from testbed.spec.event import LinkChange
from testbed.spec.experiment import Experiment
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
    """Carries out what is asked of a run, at once, and tells of it.

    Attributes:
        swaps: The network swaps, as the summary has them.
        added: The workers that were added, each with its share of the data.

    Args:
        experiment: The experiment that runs.
        testbed: Its network.
        controller: The controller, or None where a command trains and members are not ours.
        workers: The workers' programs, or None likewise.
        tell: Called after each change.
        before_routes: Called in a swap with the names of its new links, once they are built and before anything passes
            them.
    """

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        controller: ControllerClient | None,
        workers: WorkerPrograms | None,
        tell: Happening,
        before_routes: Callable[[set[str]], None],
    ) -> None:
        self._experiment = experiment
        self._testbed = testbed
        self._network = testbed.network
        self._controller = controller
        self._workers = workers
        self._tell = tell
        self._before_routes = before_routes
        self.swaps: list[dict[str, Any]] = []
        self.added: list[dict[str, Any]] = []

    def do(self, request: Request, by: By) -> dict[str, Any]:
        """Carry out a request. Returns what there is to say of it.

        Args:
            request: What is asked.
            by: `hand` if a person asks, `file` if the experiment does.

        Raises:
            ApiProblem: The request can't be carried out in this run.
            ControllerError: The controller does not take it.
        """
        match request:
            case ChangeLinks():
                changes = changes_of(request.links, self._network.links_in_force.requested())
                self.change_links(changes, pairs_of(request.links), by)
            case SwapNetwork():
                check_file(request.file)
                return self.swap(self._experiment.add_network(request.file), str(request.file), by)
            case PauseReplay():  # and with it the events whose time is yet to come
                pause_replay(self._testbed, request.paused)
                self._tell("pause" if request.paused else "resume", self._network.topology.name, by)
            case AddWorker():
                return self._add_worker(request.site, by)
            case KillWorker():
                self._kill(request.worker, by)
            case RestartWorker():
                self._restart(request.worker, by)
            case ForcePolicy():
                self._controlled().do(request)
                self._tell("policy", request.policy, by)
            case ForcePlan():
                self._controlled().do(request)
                self._tell("plan", "given", by)
            case ChangeGraph():
                self._controlled().do(request)
                self._tell("graph", request.kind, by)
            case Stop():
                self._stop(request, by)
        return {}

    def change_links(self, changes: Iterable[LinkChange], pairs: Iterable[tuple[str, str, bool]], by: By) -> None:
        """Change the values of links, which stay in force over their traces, and take physical pairs down or up.

        The controller is told of pairs; what a link carries it is to measure.
        """
        pairs = list(pairs)
        change_links(self._network, changes, pairs, partial(self._tell, by=by))
        if pairs:
            self.inform()

    def swap(self, topology: Topology, name: str, by: By) -> dict[str, Any]:
        """Go over to another network, with the workers that were added. Returns the swap's record.

        Args:
            topology: The network to go over to.
            name: The topology's file, as it was given.
            by: Who asks.
        """
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

    def inform(self) -> None:
        """Tell the controller of the network as it is declared to be now; an oracle is told what links carry."""
        if self._controller is not None:
            self._controller.change_network(*self._declared())

    def _kill(self, worker: str, by: By) -> None:
        """End a worker's program, as a crash would."""
        workers, spec = self._checked(worker), self._experiment.spec
        if spec.elastic is None and not spec.sync.scheme.survives:
            raise ApiProblem(NOT_HERE, f"this run ends without {worker}; write `elastic: {{quorum: 2}}` in its file")
        workers.kill(worker)
        self._tell("kill", worker, by)

    def _restart(self, worker: str, by: By) -> None:
        workers = self._checked(worker)
        if self._experiment.spec.elastic is None:
            raise ApiProblem(NOT_HERE, "members of this run don't come back; write `elastic: {quorum: 2}` in its file")
        workers.restart(worker)
        self._tell("restart", worker, by)

    def _add_worker(self, site: str, by: By) -> dict[str, Any]:
        """Start one more worker, which takes part as soon as it has joined. Returns its record."""
        controller = self._controlled()
        assert self._workers is not None
        check_site(self._testbed, site)
        self._check_takes_members(site)
        with self._workers.one_more(site) as newcomer:
            members = view.members(self._network.topology)
            controller.add_member(newcomer, members, *self._declared())
        worker, work = self._network.topology.last_worker(site), newcomer.job.workload
        share = {"shard": work["shard"], "shards": work["shards"]}
        self.added.append({"worker": worker.name, "site": site, "address": self._network.address(worker), **share})
        self._tell("add", worker.name, by)
        return self.added[-1]

    def _stop(self, request: Stop, by: By) -> None:
        if self._controller is not None:
            self._controller.do(request)
        self._tell("stop", request.reason, by)
        if self._controller is None:
            os.kill(os.getpid(), signal.SIGTERM)  # as whoever started it would end it

    def _controlled(self) -> ControllerClient:
        """Return the controller. Raises ApiProblem where there is none."""
        if self._controller is None:
            raise ApiProblem(NOT_HERE, "a command trains here, by its own plan: its members are not ours")
        return self._controller

    def _checked(self, worker: str) -> WorkerPrograms:
        """Return the workers' programs. Raises ApiProblem where they are not ours, or `worker` is none of them."""
        self._controlled()
        assert self._workers is not None
        names = [one.name for one in self._network.topology.workers]
        if worker not in names:
            raise ApiProblem(MISSING, f"no worker {worker} is there; there are {', '.join(names)}")
        return self._workers

    def _check_takes_members(self, site: str) -> None:
        """Raise ApiProblem where nobody can join this run at a site while it goes on."""
        spec = self._experiment.spec
        instead = f"write `workers:` of {site} higher in the topology's file, and run it again"
        if spec.sync.scheme.exchange == "gossip":
            why = f"members of {spec.sync.strategy} gossip over a graph that was made for them"
            raise ApiProblem(NOT_HERE, f"{why}; {instead}")
        if spec.elastic is None:
            raise ApiProblem(NOT_HERE, "nobody joins this run as it goes on; write `elastic: {quorum: 2}` in its file")
        if spec.hosts is not None:
            raise ApiProblem(NOT_HERE, f"this network is split over several hosts; {instead}")

    def _declared(self) -> tuple[dict[str, PhysicalLink], dict[Pair, tuple[str, ...]]]:
        """Return the network's links, and the routes between workers."""
        topology = self._network.topology
        down = self._network.links_in_force.down
        oracle = self._experiment.spec.controller.knowledge == "oracle"
        states = self._network.links_in_force.states() if oracle else view.declared_states(topology)
        states = {name: state for name, state in states.items() if name not in down}
        return view.physical_links(topology, states), view.member_routes(topology, self._network.routes)
