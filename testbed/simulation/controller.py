"""The controller on simulated time: the coordinator of a live run, whose actions are carried out at once.

a swap:   Prepare --each member connects to its next hops--> Held --all--> Confirm --a round on--> in force
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from testbed.controller.actions import Action, After, Background, Fail, Tell, TellAll
from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.coordinator import Coordinator
from testbed.controller.gossip.coordinator import GossipCoordinator
from testbed.controller.outcome import State, write_final
from testbed.controller.report_log import ReportLog
from testbed.controller.server.identity import Identities
from testbed.controller.spec import ControllerSpec
from testbed.plan import Plan
from testbed.protocol import Confirm, ControlMessage, Held, Hello, Prepare, Probe
from testbed.run.errors import RunFailed
from testbed.simulation.event_queue import EventQueue

#: A member and a probe that it was told to send.
SendProbe = Callable[[str, Probe], None]
#: Seconds that a member takes to hold a plan in place of another.
HoldS = Callable[[str, Plan], float]


class Newest(NamedTuple):
    """Of the last round or iteration: metrics, seconds that it took, and the plan, where members go by one.

    `rounds_left` is None where that does not depend on how members train from now on.
    """

    metrics: Mapping[str, float | None]
    seconds: float | None
    plan: Plan | None
    rounds_left: int | None = None


class Keyless(Identities):
    """Members on simulated time greet nobody: those of 1,000 would have a million keys, which take ten seconds."""

    def keys(self, member: str) -> dict[str, str]:
        """None."""
        return {}


class SimulatedCoordinator(AllReduceCoordinator):
    """That of a run, but that its members have no keys."""

    identify = Keyless


class SimulatedController:
    """Deciding takes no time; what members say and are told travels beside the network, as in emulation."""

    def __init__(self, spec: ControllerSpec, out: Path, queue: EventQueue) -> None:
        """PolicyError when the first view has no plan; `out` is the run's directory."""
        self.spec = spec
        self.state: State = "waiting"
        self.failure = ""
        self.hellos: dict[str, Hello] = {}
        self.coordinator: Coordinator
        if spec.planning is not None:
            self.coordinator = SimulatedCoordinator(spec, spec.planning, out, queue.clocks)
        else:
            assert spec.graph is not None
            self.coordinator = GossipCoordinator(spec, spec.graph, queue.clocks)
        self._out = out
        self._reports = ReportLog(out, spec.rounds, queue.clocks)
        self._queue = queue
        self._hold_s: HoldS = lambda *_: 0.0
        self._probe: SendProbe = lambda *_: None
        self._confirmed: dict[int, Plan] = {}
        self._prepared: Plan | None = None
        self.coordinator.start()

    def attend(self, hold_s: HoldS, probe: SendProbe) -> None:
        """From now on members hold plans and send probes so."""
        self._hold_s, self._probe = hold_s, probe

    def begin(self) -> None:
        """All members are there."""
        self.hellos = {member: Hello(member, ("simulated", 1)) for member in self.spec.members}
        self.state = "running"
        self._carry_out(self.coordinator.begin(self.hellos))

    @property
    def plan(self) -> Plan:
        """What the next round goes by: the newest plan that all were known to hold by now."""
        assert isinstance(self.coordinator, AllReduceCoordinator)  # members that gossip go by none
        return self._confirmed[max(self._confirmed)] if self._confirmed else self.coordinator.group.plans.plan

    @property
    def newest(self) -> Newest:
        """How far members are, for who watches: many times a second, of many members."""
        if isinstance(self.coordinator, AllReduceCoordinator):
            group = self.coordinator.group
            last, plan = group.rounds.last, group.plans.plan
            left = group.rounds_left if group.conducting else None
            return Newest(last.metrics, last.seconds, plan, left) if last else Newest({}, None, plan, left)
        status = self.coordinator.progress.status()
        return Newest(status["metrics"], status["round_seconds"], None)

    def hear(self, message: ControlMessage) -> None:
        """A member says something."""
        self._carry_out(self.coordinator.receive(message))
        self._reports.add(message)

    def proceed(self) -> None:
        """It was told of another network."""
        self._carry_out(())

    def finish(self) -> None:
        """All have said goodbye: leave the run's directory complete."""
        self._carry_out(self.coordinator.finish())
        self.state = "done"
        self.coordinator.end()
        write_final(self._out / "final.json", self)

    def close(self) -> None:
        """Nothing is recorded any more."""
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
            case TellAll(Prepare(plan)):
                self._prepare(Plan.from_json(plan))
            case TellAll(Confirm(epoch)) if self._prepared is not None and self._prepared.epoch == epoch:
                self._confirmed[epoch] = self._prepared
            case After(seconds):
                self._queue.schedule(self._queue.clocks.now_s + seconds, lambda: self._carry_out(action.then()))
            case Background():
                self._carry_out(action.then(action.work()))
            case Fail(reason):
                raise RunFailed(reason)

    def _prepare(self, plan: Plan) -> None:
        self._prepared = plan
        for member in plan.members:
            held = partial(self.hear, Held(member, plan.epoch))
            self._queue.schedule(self._queue.clocks.now_s + self._hold_s(member, plan), held)
