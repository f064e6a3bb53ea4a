"""The environment of a simulation: its network, its event queue, its controller, and the experiment's events.

The controller is the coordinator of a live run, whose actions are carried out at once:

    a swap:   Prepare --each member connects to its next hops--> Held --all--> Confirm --a round on--> in force
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.gossip.coordinator import GossipCoordinator
from testbed.controller.model.actions import Action, After, Background, Fail, Tell
from testbed.controller.model.coordinator import Coordinator
from testbed.controller.model.identity import Identities
from testbed.controller.model.spec import ControllerSpec
from testbed.controller.outcome import ControlledRun
from testbed.controller.run_records import ReportLog
from testbed.emulation.network.difference import Difference
from testbed.emulation.network.routing import Routes
from testbed.link import link_name, pair_name
from testbed.plan import Plan
from testbed.protocol import Confirm, ControlMessage, Held, Hello, Prepare, Probe
from testbed.run import view
from testbed.run.changes import event_text
from testbed.run.errors import RunFailed
from testbed.run.jobs import Jobs
from testbed.run.measured_network import CONGESTION_CONTROL
from testbed.simulation.event_queue import EventQueue, SimulatedClocks
from testbed.simulation.network import NetworkState, SimulatedNetwork
from testbed.spec.event import Event
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Topology

#: A run asks for the number of complete rounds each 0.3 s and plays due events each 0.1 s, so an event of a round comes
#: this much later on average.
EVENT_DELAY_S = 0.2

#: Has a member send a probe.
SendProbe = Callable[[str, Probe], None]
#: Returns the seconds that a member takes until it holds a plan.
HoldS = Callable[[str, Plan], float]


class LatestRound(NamedTuple):
    """The figures of the last complete round, or of the last iteration of members that gossip."""

    metrics: Mapping[str, float | None]
    seconds: float | None
    #: The plan in force; None for members that gossip.
    plan: Plan | None
    #: None unless the controller decides how members train, which changes the number of rounds.
    rounds_left: int | None = None


class KeylessIdentities(Identities):
    """Identities without keys: members do not connect, and the million keys of 1,000 members take ten seconds."""

    def keys(self, member: str) -> dict[str, str]:
        """Return an empty mapping: simulated members do not connect, so they share no keys."""
        return {}


class SimulatedCoordinator(AllReduceCoordinator):
    """The coordinator of a run, for members without keys."""

    identify = KeylessIdentities


class SimulatedController(ControlledRun):
    """The controller on simulated time. Its decisions and its messages take no time and do not use the network."""

    def __init__(self, spec: ControllerSpec, out: Path, queue: EventQueue) -> None:
        """Make the controller of a simulated run, with its first plan.

        Raises:
            PolicyError: the first view has no plan.
        """
        coordinator: Coordinator
        if spec.planning is not None:
            coordinator = SimulatedCoordinator(spec, spec.planning, out, queue.clocks)
        else:
            assert spec.graph is not None
            coordinator = GossipCoordinator(spec, spec.graph, queue.clocks)
        super().__init__(spec, coordinator)
        self._out = out
        self._reports = ReportLog(out, spec.rounds, queue.clocks)
        self._queue = queue
        self._hold_s: HoldS = lambda *_: 0.0
        self._probe: SendProbe = lambda *_: None
        self._confirmed: dict[int, Plan] = {}
        self._prepared: Plan | None = None
        self.coordinator.start()

    def connect(self, hold_s: HoldS, probe: SendProbe) -> None:
        """Set how long members take to hold a plan, and how they send probes."""
        self._hold_s, self._probe = hold_s, probe

    def begin(self) -> None:
        """Begin the training, with all members present."""
        self.hellos = {member: Hello(member, ("simulated", 1)) for member in self.spec.members}
        self.state = "running"
        self._carry_out(self.coordinator.begin(self.hellos))

    @property
    def plan(self) -> Plan:
        """The plan of the next round: the newest one that all members hold, as the controller confirmed."""
        assert isinstance(self.coordinator, AllReduceCoordinator)  # members that gossip have no plan
        return self._confirmed[max(self._confirmed)] if self._confirmed else self.coordinator.group.plans.plan

    @property
    def latest(self) -> LatestRound:
        """The last complete round. Cheap enough to be asked many times a second, of many members."""
        if isinstance(self.coordinator, AllReduceCoordinator):
            group = self.coordinator.group
            last, plan = group.rounds.last, group.plans.plan
            left = self.coordinator.maker.rounds_left if self.coordinator.maker.training else None
            return LatestRound(last.metrics, last.seconds, plan, left) if last else LatestRound({}, None, plan, left)
        status = self.coordinator.status()
        return LatestRound(status["metrics"], status["round_seconds"], None)

    def receive(self, message: ControlMessage) -> None:
        """Handle a member's message, and carry out the coordinator's actions on simulated time."""
        self._carry_out(self.coordinator.receive(message))
        self._reports.add(message)

    def proceed(self) -> None:
        """Carry out the coordinator's actions after a change of the network."""
        self._carry_out(())

    def finish(self) -> None:
        """Complete the run's directory, after all members said goodbye."""
        self._carry_out(self.coordinator.finish())
        self.state = "done"
        self.coordinator.end()
        self.write_final(self._out / "final.json")

    def close(self) -> None:
        """Close the records."""
        self.coordinator.close()
        self._reports.close()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in list(actions):
            self._do(action)
        for action in list(self.coordinator.proceed()):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Tell(member, Probe() as probe):
                self._probe(member, probe)
            case Tell(member, Prepare(plan)):
                self._prepare(member, plan)
            case Tell(_, Confirm(epoch)) if self._prepared is not None and self._prepared.epoch == epoch:
                self._confirmed[epoch] = self._prepared
            case After(seconds):
                self._queue.schedule(self._queue.clocks.now_s + seconds, lambda: self._carry_out(action.then()))
            case Background():
                self._carry_out(action.then(action.work()))
            case Fail(reason):
                raise RunFailed(reason)

    def _prepare(self, member: str, document: Mapping[str, Any]) -> None:
        if self._prepared is None or self._prepared.epoch != document["epoch"]:  # each of 1,000 members gets the plan
            self._prepared = Plan.from_json(document)
        held = partial(self.receive, Held(member, self._prepared.epoch))
        self._queue.schedule(self._queue.clocks.now_s + self._hold_s(member, self._prepared), held)


@dataclass(frozen=True, slots=True)
class Environment:
    """The network, the event queue and the controller of a simulation."""

    network: SimulatedNetwork
    queue: EventQueue
    controller: SimulatedController

    @classmethod
    def of(cls, experiment: Experiment, out: Path, routes: Routes) -> Environment:
        """Return the environment of an experiment whose training begins in this second."""
        queue = EventQueue(SimulatedClocks(time.time()))
        spec = Jobs(experiment, in_containers=False).controller_spec(routes, queue.clocks.unix())
        return cls(SimulatedNetwork(experiment, routes), queue, SimulatedController(spec, out, queue))


def congestion_control(experiment: Experiment) -> str:
    """Return the congestion control that members would have on this machine."""
    return experiment.spec.sync.congestion or CONGESTION_CONTROL.read_text().strip()


class RecordEvent(Protocol):
    """Records an event; `changed` are all requested values of a link that was changed."""

    def __call__(self, kind: str, target: str, changed: Mapping[str, float | None] | None = None) -> None:
        """Record one event; `target` is its link, worker or network."""


class EventSchedule:
    """Schedules the experiment's events: each is recorded and reported to the controller, as in a live run."""

    def __init__(self, experiment: Experiment, environment: Environment, record: RecordEvent) -> None:
        #: The swaps of the network, as the summary has them.
        self.swaps: list[dict[str, Any]] = []
        #: Called when the network has changed.
        self.on_change: Callable[[], None] = lambda: None
        self._experiment = experiment
        self._environment = environment
        self._record = record
        self._pending = list(experiment.spec.events)
        for event in sorted(self._pending, key=lambda event: event.at or 0.0):
            if event.at is not None:
                self._schedule(event.at, event)
        if self._is_oracle:
            self._inform_oracle()

    @property
    def pending(self) -> list[str]:
        """Descriptions of the events that have not happened."""
        return [event_text(event) for event in self._pending]

    def complete_round(self, number: int, at_s: float) -> None:
        """Schedule the events of a round that is complete since `at_s`."""
        for event in self._pending:
            if event.round == number:
                self._environment.network.schedule(at_s + EVENT_DELAY_S, event)
                self._schedule(at_s + EVENT_DELAY_S, event)

    @property
    def _is_oracle(self) -> bool:
        return self._experiment.spec.controller.knowledge == "oracle"

    def _schedule(self, at_s: float, event: Event) -> None:
        self._environment.queue.schedule(at_s, lambda: self._happen(at_s, event))

    def _happen(self, at_s: float, event: Event) -> None:
        """Record an event and report it. The simulated network has applied it already."""
        self._pending.remove(event)
        self._check_links(event)
        self.on_change()
        state = self._environment.network.at(at_s)
        if event.change:
            # Recorded as requested if a swap at the same moment has dropped the change, so that the state lacks it.
            own = event.change.scaled(self._experiment.spec.scale)
            self._record("change", own.link, state.changes.get(own.link, own).values())
            return
        if event.down or event.up:
            self._record("down" if event.down else "up", pair_name(*event.pair))
        if event.swap:
            self._swap(event.swap)
        self._inform(state)

    def _check_links(self, event: Event) -> None:
        """Raise RunFailed if the network lacks a link of the event, as a live run does."""
        names = [event.change.link] if event.change else []
        if event.down or event.up:
            names = [link_name(*event.pair), link_name(*reversed(event.pair))]
        for name in names:
            if name not in self._topology.links:
                text = f"the event {event_text(event)} can't happen: the network has no link {name}"
                raise RunFailed(text, rule="event")

    @property
    def _topology(self) -> Topology:
        """The network after the swaps so far."""
        return self._experiment.networks[self.swaps[-1]["file"]] if self.swaps else self._experiment.topology

    def _swap(self, name: str) -> None:
        topology, now_s = self._experiment.networks[name], self._environment.queue.clocks.unix()
        links = Difference.between(self._topology, topology).links
        changes = {"added": links.added, "removed": links.removed, "changed": links.changed}
        moments = {"requested_s": now_s, "active_s": now_s}
        self.swaps.append({"kind": "network", "target": topology.name, "file": name, **changes, **moments})
        self._record("swap", topology.name)

    def _inform_oracle(self) -> None:
        """Report the links' true states to the controller, except at the start, and schedule the next report."""
        queue = self._environment.queue
        queue.schedule(queue.clocks.now_s + self._experiment.spec.controller.period, self._inform_oracle)
        if queue.clocks.now_s:
            self._inform(self._environment.network.at(queue.clocks.now_s))

    def _inform(self, state: NetworkState) -> None:
        """Report the network to the controller: in its declared state, or to an oracle in its true state."""
        states = view.true_states(state.states) if self._is_oracle else view.declared_states(state.topology)
        links = view.physical_links(
            state.topology, {name: its for name, its in states.items() if name not in state.down}
        )
        controller = self._environment.controller
        controller.coordinator.change_network(links, view.member_routes(state.topology, state.routes))
        controller.proceed()
