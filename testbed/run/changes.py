"""Carries out the changes that a person or the events of an experiment's file ask for, and reports both alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from testbed.api.models import By
from testbed.api.requests import (
    MISSING,
    NOT_HERE,
    WRONG,
    AddWorker,
    ApiProblem,
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
from testbed.controller.client import ControllerClient, ControllerError, ControllerFailedError
from testbed.emulation.daemon.handlers import change_links, changes_of, check_file, check_site, pairs_of, pause_replay
from testbed.emulation.testbed import Testbed
from testbed.link import pair_name
from testbed.plan import Plan, PlanError
from testbed.planning import Pair, PhysicalLink
from testbed.run import view
from testbed.run.assignments import check_written
from testbed.run.errors import RunFailed
from testbed.schemes.options import Misfit
from testbed.spec.event import Event, LinkChange
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology

if TYPE_CHECKING:
    from testbed.run.workers import Workers


class ChangeListener(Protocol):
    """A callback for each change: its kind, its target and who asked for it.

    For a changed link, `changed` has all values that then override its file or trace. For a network swap, `removed`
    has the links that the new network lacks.
    """

    def __call__(
        self,
        kind: str,
        target: str,
        by: By,
        *,
        changed: Mapping[str, float | None] | None = None,
        removed: Sequence[str] = (),
    ) -> None:
        """Handle one change, which was carried out."""


class Changes:
    """Carries out requests to a run as they come, and reports each change to `tell`.

    Args:
        experiment: The experiment that runs.
        testbed: The network that is up.
        controller: The controller of the testbed's own workers; None where a command trains.
        workers: The programs of the testbed's own workers; None where a command trains.
        tell: Called after each change.
        before_routes: Called in a swap with the names of its new links, once they are built and before any traffic
            passes them.
        planner: Where a command trains, the controller that plans for its programs, or None.

    Attributes:
        swaps: The network swaps, in the summary's form.
        added: The workers that were added, each with its share of the data.
        stopped: Whether a request asked to stop a run that has no controller.
    """

    def __init__(
        self,
        experiment: Experiment,
        testbed: Testbed,
        controller: ControllerClient | None,
        workers: Workers | None,
        tell: ChangeListener,
        before_routes: Callable[[set[str]], None],
        planner: ControllerClient | None = None,
    ) -> None:
        self._experiment = experiment
        self._testbed = testbed
        self._network = testbed.network
        self._controller = controller
        self._planner = controller or planner
        self._workers = workers
        self._tell = tell
        self._before_routes = before_routes
        self.stopped = False
        self.swaps: list[dict[str, Any]] = []
        self.added: list[dict[str, Any]] = []

    def do(self, request: Request, by: By) -> dict[str, Any]:
        """Carry out a request by a person (`by` is `hand`) or the experiment (`file`); return the fields of its answer.

        Raises:
            ApiProblem: The request can't be carried out in this run.
            ControllerError: The controller rejects the request.
        """
        match request:
            case ChangeLinks():
                changes = changes_of(request.links, self._network.links_in_force.requested())
                self.change_links(changes, pairs_of(request.links), by)
            case SwapNetwork():
                check_file(request.file)
                return self.swap(self._experiment.add_network(request.file), str(request.file), by)
            case PauseReplay():  # also postpones the events that are due at a time
                pause_replay(self._testbed, request.paused)
                self._tell("pause" if request.paused else "resume", self._network.topology.name, by)
            case AddWorker():
                return self._add_worker(request.site, by)
            case KillWorker():
                self._kill(request.worker, by)
            case RestartWorker():
                self._restart(request.worker, by)
            case ForcePolicy():
                self._force(request)
                self._tell("policy", request.policy, by)
            case ForcePlan():
                self._force(request)
                self._tell("plan", "given", by)
            case ChangeGraph():
                self._required_controller().do(request)
                self._tell("graph", request.kind, by)
            case Stop():
                self._stop(request, by)
            case _:
                raise ApiProblem(NOT_HERE, "a run's network does not take this; one of `testbed network up` does")
        return {}

    def change_links(self, changes: Iterable[LinkChange], pairs: Iterable[tuple[str, str, bool]], by: By) -> None:
        """Change the values of links, which then override their traces, and take physical pairs down or up.

        The controller is told which pairs are down; it measures the links' rates itself.
        """
        pairs = list(pairs)
        change_links(self._network, changes, pairs, partial(self._tell, by=by))
        if pairs:
            self.inform()

    def swap(self, topology: Topology, name: str, by: By) -> dict[str, Any]:
        """Put another network in force, with the workers that were added, and return the swap's record.

        `name` is the topology's file, as the experiment or the request names it.
        """
        requested = time.time()
        for added in self.added:
            topology = topology.with_worker(added["site"])
        try:
            done = self._network.swap(topology, self._before_routes)
        finally:  # a swap that was undone has dropped the queued rows of its links
            self._testbed.replay.follow(self._network.topology.links.values())
        changes = {"added": done.added, "removed": done.removed, "changed": done.changed}
        record = {"kind": "network", "target": topology.name, "file": name, "requested_s": requested, **changes}
        self.swaps.append({**record, "active_s": requested + done.seconds})
        self._tell("swap", topology.name, by, removed=done.removed)
        self.inform()  # the network has moved, even if the controller rejects this
        return self.swaps[-1]

    def inform(self) -> None:
        """Send the controller the declared network; with `knowledge: oracle`, the links' states in force.

        Where a command trains, the members are the workers that run it.
        """
        if self._controller is not None:
            self._controller.change_network(*self._known_network())
        elif self._planner is not None and (program := self._experiment.spec.program) is not None:
            links, routes = self._known_network()
            members = program.commands(self._network.topology).keys()
            among = {pair: route for pair, route in routes.items() if members >= set(pair)}
            with suppress(ControllerError):  # the command has ended; if the controller has, the run fails for that
                self._planner.change_network(links, among)

    def _kill(self, worker: str, by: By) -> None:
        workers, spec = self._programs_with(worker), self._experiment.spec
        if spec.elastic is None and not spec.sync.scheme.survives:
            why = f"this run can't continue without {worker}; write `elastic: {{quorum: 2}}` in the experiment's file"
            raise ApiProblem(NOT_HERE, why)
        workers.kill(worker)
        self._tell("kill", worker, by)

    def _restart(self, worker: str, by: By) -> None:
        workers = self._programs_with(worker)
        if self._experiment.spec.elastic is None:
            why = "this run restarts no workers; write `elastic: {quorum: 2}` in the experiment's file"
            raise ApiProblem(NOT_HERE, why)
        workers.restart(worker)
        self._tell("restart", worker, by)

    def _add_worker(self, site: str, by: By) -> dict[str, Any]:
        """Start one more worker, which trains as soon as it has joined, and return its record."""
        controller = self._required_controller()
        assert self._workers is not None
        check_site(self._testbed, site)
        self._check_takes_members(site)
        with self._workers.one_more(site) as newcomer:
            stragglers = self._experiment.spec.compute.stragglers
            members = view.slowed(view.members(self._network.topology), stragglers)
            controller.add_member(newcomer, members, *self._known_network())
        worker, work = self._network.topology.last_worker(site), newcomer.job.workload
        share = {"shard": work["shard"], "shards": work["shards"]}
        self.added.append({"worker": worker.name, "site": site, "address": self._network.address(worker), **share})
        self._tell("add", worker.name, by)
        return self.added[-1]

    def _force(self, request: ForcePolicy | ForcePlan) -> None:
        """Have the controller plan by a policy, or put a plan in force.

        Raises:
            ApiProblem: The run has no plans, or the workers' scheme can't train by the requested ones.
        """
        if self._planner is None:
            raise ApiProblem(NOT_HERE, "this run has no plans: its `train` section has no `backend` and no `scheme`")
        if self._controller is not None:
            try:
                self._check_scheme(request)
            except Misfit as error:
                raise ApiProblem(WRONG, str(error)) from error
        self._planner.do(request)

    def _check_scheme(self, request: ForcePolicy | ForcePlan) -> None:
        """Raise Misfit if members that all-reduce can't train by the request; the controller knows no scheme."""
        sync = self._experiment.spec.sync
        if sync.scheme.exchange != "all-reduce":
            return
        match request:
            case ForcePlan(plan=document):
                pass
            case ForcePolicy(policy="given"):
                document = request.options.get("document", {})
            case ForcePolicy():
                sync.own.check_plan(request.policy, request.options, sync.codec)
                return
        with suppress(PlanError):  # the controller refuses it, and says why
            check_written(sync, Plan.from_json(document))

    def _stop(self, request: Stop, by: By) -> None:
        if self._controller is None:
            self.stopped = True
        else:
            self._controller.do(request)
        self._tell("stop", request.reason, by)

    def _required_controller(self) -> ControllerClient:
        """Return the controller. Raises ApiProblem in a run whose command trains."""
        if self._controller is None:
            raise ApiProblem(NOT_HERE, "a command trains in this run, so its workers can't be changed")
        return self._controller

    def _programs_with(self, worker: str) -> Workers:
        """Return the workers' programs. Raises ApiProblem if a command trains, or the run has no such `worker`."""
        self._required_controller()
        assert self._workers is not None
        names = [one.name for one in self._network.topology.workers]
        if worker not in names:
            raise ApiProblem(MISSING, f"this run has no worker {worker}; its workers are {', '.join(names)}")
        return self._workers

    def _check_takes_members(self, site: str) -> None:
        """Raise ApiProblem if no worker can join this run at a site while it trains."""
        spec = self._experiment.spec
        instead = f"write a higher `workers:` of {site} in the topology's file and start another run"
        if spec.sync.scheme.exchange == "gossip":
            why = f"{spec.sync.strategy} gossips over a graph of the workers that the run began with"
            raise ApiProblem(NOT_HERE, f"{why}; {instead}")
        if spec.elastic is None:
            why = "this run takes no new workers; write `elastic: {quorum: 2}` in the experiment's file"
            raise ApiProblem(NOT_HERE, why)
        if spec.hosts is not None:
            raise ApiProblem(NOT_HERE, f"a network that is split over hosts takes no new workers; {instead}")

    def _known_network(self) -> tuple[dict[str, PhysicalLink], dict[Pair, tuple[str, ...]]]:
        """Return what the controller is told: the links that are not down, with their states, and the workers' routes.

        The states are the declared ones; with `knowledge: oracle`, those in force.
        """
        topology = self._network.topology
        oracle = self._experiment.spec.controller.knowledge == "oracle"
        in_force = self._network.links_in_force
        states = view.true_states(in_force.states()) if oracle else view.declared_states(topology)
        states = {name: state for name, state in states.items() if name not in in_force.down}
        return view.physical_links(topology, states), view.member_routes(topology, self._network.routes)


class EventPlayer:
    """Plays the events of an experiment's file. With `knowledge: oracle`, also reports the links' states."""

    def __init__(self, experiment: Experiment, changes: Changes) -> None:
        self._experiment = experiment
        self._changes = changes
        self._waiting = list(experiment.spec.events)
        self._informed_s = 0.0

    @property
    def waiting(self) -> list[str]:
        """The events that have not happened, in words."""
        return [event_text(event) for event in self._waiting]

    def play(self, elapsed_s: float, round_: int) -> None:
        """Carry out the events that are due by now: at `elapsed_s` of replay, which pauses stop, or in round `round_`.

        Raises:
            RunFailed: An event can't be carried out, or the controller rejected it, did not answer, or had an internal
                error.
        """
        due = [event for event in self._waiting if _is_due(event, elapsed_s, round_)]
        for event in sorted(due, key=lambda event: (elapsed_s if event.at is None else event.at, event.round or 0)):
            self._waiting.remove(event)
            try:
                self._carry_out(event)
            except (KeyError, ApiProblem) as error:
                why = error.args[0] if isinstance(error, KeyError) else error
                raise RunFailed(f"the event {event_text(event)} can't happen: {why}", rule="event") from error
            except ControllerError as error:
                outcome = "did not complete" if isinstance(error, ControllerFailedError) else "rejected"
                text = f"the controller {outcome} the event {event_text(event)}: {error}"
                raise RunFailed(text, rule="event") from error
        controller = self._experiment.spec.controller
        if controller.knowledge == "oracle" and elapsed_s - self._informed_s >= controller.period:
            self._informed_s = elapsed_s
            with suppress(ControllerError):  # the controller is busy; the next period sends the states again
                self._changes.inform()

    def _carry_out(self, event: Event) -> None:
        changes = self._changes
        if event.change:
            changes.change_links([event.change.scaled(self._experiment.spec.scale)], [], "file")
        if event.down or event.up:
            changes.change_links([], [(*event.pair, event.up is not None)], "file")
        if event.kill:
            changes.do(KillWorker(worker=event.kill), "file")
        if event.graph:
            changes.do(ChangeGraph(kind=event.graph), "file")
        if event.swap:
            changes.swap(self._experiment.networks[event.swap], event.swap, "file")


def _is_due(event: Event, elapsed_s: float, round_: int) -> bool:
    return event.at <= elapsed_s if event.at is not None else (event.round or 0) <= round_


def event_text(event: Event) -> str:
    """Return an event in words, e.g. `down paris-tokyo at 30 s`."""
    moment = f"at {event.at:g} s" if event.at is not None else f"in round {event.round}"
    if event.down or event.up:
        return f"{'down' if event.down else 'up'} {pair_name(*event.pair)} {moment}"
    if event.kill:
        return f"kill {event.kill} {moment}"
    if event.graph:
        return f"graph {event.graph} {moment}"
    return f"change of {event.change.link} {moment}" if event.change else f"swap to {event.swap} {moment}"
