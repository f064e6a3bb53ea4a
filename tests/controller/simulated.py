"""Members and their coordinator on simulated time: what is said and decided takes times that a seed draws."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.model.actions import Action, Background, Tell, TellAll
from testbed.controller.model.membership import GroupState
from testbed.controller.model.plan_history import Swap
from testbed.controller.model.spec import ControllerSpec
from testbed.controller.replanning.plan_maker import PlanMaker
from testbed.plan import Plan
from testbed.planning import CostModel, Pair, View
from testbed.protocol import (
    Abort,
    Arrived,
    ControlMessage,
    Held,
    Holding,
    Prepare,
    Probe,
    Reconfigure,
    Report,
    Welcome,
)
from testbed.simulation.environment import SimulatedController
from testbed.simulation.event_queue import EventQueue, SimulatedClocks
from tests.controller.fleet import PAUSE_S, take_probes, transfers

#: Seconds that a message, and that work beside the event loop, takes at most: an answer to what a round showed is there
#: before the next round, as real rounds leave time for it.
MESSAGE_S = 0.005
WORK_S = 0.02

#: Of the round that a member is in when it is told to abort.
ELEMENTS = 1000


@dataclass(slots=True)
class SimulatedMember:
    """The plans that a member holds."""

    plans: dict[int, Plan] = field(default_factory=dict)
    successor: int = 0
    probes: set[Pair] = field(default_factory=set)


class SimulatedFleet(SimulatedController):
    """All members of a view, and their coordinator; `network` is what really is, and may be replaced at any time."""

    def __init__(self, spec: ControllerSpec, out: Path, network: View, seed: int) -> None:
        self.network = network
        self.members = {name: SimulatedMember() for name in network.names}
        self.round = 0
        self.epochs: list[int] = []
        self.probed: set[Pair] = set()
        self.chance = random.Random(seed)
        self._arrives_s: dict[str, float] = {}
        self._queue = EventQueue(SimulatedClocks(1.7e9))
        super().__init__(spec, out, self._queue)
        self.begin()
        self.pass_s(PAUSE_S)

    @property
    def group(self) -> GroupState:
        """The members that reduce in rounds, with their plans and rounds."""
        assert isinstance(self.coordinator, AllReduceCoordinator)
        return self.coordinator.group

    @property
    def maker(self) -> PlanMaker:
        """The network as the coordinator knows it, and what else plans are made from."""
        assert isinstance(self.coordinator, AllReduceCoordinator)
        return self.coordinator.maker

    @property
    def swaps(self) -> list[Swap]:
        """The plans that followed the first one, and the one that is to be the next."""
        return self.group.plans.swaps

    def change_network(self, network: View) -> None:
        """Tell the coordinator of another underlay."""
        self.coordinator.change_network(network.links, network.routes)
        self.proceed()

    def pass_s(self, seconds: float) -> None:
        """Let simulated time pass, with all that happens meanwhile."""
        until_s = self._queue.clocks.now_s + seconds
        self._queue.schedule(until_s, lambda: None)
        self._queue.run_until(until_s)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.one_round()

    def one_round(self) -> None:
        """Reduce by the plan that all members hold, report the round, and pause until the next one."""
        current = self.epochs[-1] if self.epochs else 0
        ready = {max(member.successor, current) for member in self.members.values()}
        epoch = ready.pop() if len(ready) == 1 else current
        plan = next(iter(self.members.values())).plans[epoch]
        self.epochs.append(epoch)
        started = self._queue.clocks.unix()
        probes = take_probes((member.probes for member in self.members.values()), self.probed)
        samples, arrivals = transfers(self.network, plan, self.chance, started, probes)
        self.pass_s(CostModel(self.network).predict(plan).seconds)
        for name in self._shuffled():
            peers = tuple(sample for (source, _), sample in samples.items() if source == name)
            came = {source: trains for (source, target), trains in arrivals.items() if target == name}
            sent = sum(sample.bytes for sample in peers)
            timing = (started, self._queue.clocks.unix(), 0.1, 0.0, sent, sent, 0, 0, {})
            self._say(name, Report(name, self.round, epoch, *timing, peers, {"loss": 1.0}, arrivals=came))
        self.round += 1
        self.pass_s(PAUSE_S)

    def linger(self, seconds: float, silent: Collection[str] = ()) -> None:
        """Be in a round for `seconds`, and say what came in, except for the members that are `silent`."""
        plan = next(iter(self.members.values())).plans[self.epochs[-1]]
        _, arrivals = transfers(self.network, plan, self.chance, self._queue.clocks.unix())
        self.pass_s(seconds)
        until_s = self._queue.clocks.unix()
        for name in self._shuffled():
            came = {
                source: tuple(train for train in trains if train.began_s + train.seconds < until_s)
                for (source, target), trains in arrivals.items()
                if target == name
            }
            if name not in silent:
                self._say(name, Arrived(name, came))
        self.pass_s(PAUSE_S)

    def _shuffled(self) -> list[str]:
        return self.chance.sample(list(self.members), len(self.members))

    def _do(self, action: Action) -> None:
        match action:
            case Tell(member, message):
                self._travel(f"to {member}", partial(self._told, member, message))
            case TellAll(message):
                for member in self._shuffled():
                    self._travel(f"to {member}", partial(self._told, member, message))
            case Background():
                done_s = self._queue.clocks.now_s + self.chance.uniform(0.0, WORK_S)
                self._queue.schedule(done_s, lambda: self._carry_out(action.then(action.work())))
            case _:
                super()._do(action)

    def _say(self, member: str, message: ControlMessage) -> None:
        self._travel(f"from {member}", partial(self.receive, message))

    def _travel(self, connection: str, arrive: Callable[[], None]) -> None:
        """Have a message arrive after those before it on its connection."""
        now_s = self._queue.clocks.now_s
        at_s = max(now_s + self.chance.uniform(0.0, MESSAGE_S), self._arrives_s.get(connection, 0.0))
        self._arrives_s[connection] = at_s
        self._queue.schedule(at_s, arrive)

    def _told(self, name: str, message: ControlMessage) -> None:
        member = self.members[name]
        match message:
            case Welcome():
                member.plans[0] = Plan.from_json(message.plan)
            case Prepare():
                plan = Plan.from_json(message.plan)
                member.plans[plan.epoch] = plan
                member.successor = plan.epoch
                self._say(name, Held(name, plan.epoch, ""))
            case Abort():
                self._say(name, Holding(name, message.epoch, self.round, over=False, elements=ELEMENTS))
            case Reconfigure():
                plan = Plan.from_json(message.plan)
                member.plans, member.successor = {plan.epoch: plan}, plan.epoch
                self.epochs[-1] = plan.epoch  # by which the round that it is in goes on
            case Probe():
                member.probes.add((name, message.peer))


@contextmanager
def simulated(spec: ControllerSpec, folder: Path, network: View, seed: int) -> Iterator[SimulatedFleet]:
    """A fleet that trains over the network; its records are in `out` of the folder."""
    fleet = SimulatedFleet(spec, folder / "out", network, seed)
    try:
        yield fleet
    finally:
        fleet.close()
