"""A deterministic driver: carries out members' effects under simulated time, with chosen delays and interleavings."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from testbed.sync.gossip.effects import Advance, LocalCompute, Participant, Send, Step, Steps, Until
from testbed.sync.gossip.message import Message

Pair = tuple[str, str]


class Deadlock(AssertionError):
    """Nothing is under way and members still wait."""


def no_change(member: str, iteration: int, parameters: Tensor) -> Tensor:
    return torch.zeros_like(parameters)


@dataclass
class Conditions:
    """The network's and the members' times, in units. Events of the same time happen in any order."""

    step_time: Callable[[str, int], float] = lambda member, iteration: 1.0
    delay: Callable[[str, str], float] = lambda sender, receiver: 0.0
    change: Callable[[str, int, Tensor], Tensor] = no_change
    starts: Mapping[str, float] = field(default_factory=dict)
    #: Orders what is due at the same time.
    random: Random = field(default_factory=lambda: Random(0))
    in_order: bool = True


class Watcher:
    """Observes members. A test overrides the methods that it needs, and raises where an invariant does not hold."""

    def advanced(self, member: str, iteration: int) -> None:
        """`member` has entered `iteration`."""

    def settled(self, member: str) -> None:
        """`member` waits again, or has ended, after something happened to it."""


class Simulation:
    """Drives `members` until all programs have ended.

    `flying` are the messages under way by (sender, receiver), `log` all that were sent, `ended` when each program did.
    """

    def __init__(self, members: Mapping[str, Participant], conditions: Conditions, *watchers: Watcher) -> None:
        self.members = dict(members)
        self.now = 0.0
        self.log: list[tuple[Pair, Message]] = []
        self.flying: dict[Pair, list[Message]] = defaultdict(list)
        self.ended: dict[str, float] = {}
        self._conditions = conditions
        self._watchers = list(watchers)
        self._due: list[tuple[float, float, int, Callable[[], None]]] = []
        self._count = 0
        self._programs: dict[str, Steps[None]] = {name: member.program() for name, member in members.items()}
        self._waiting: dict[str, Until] = {}
        self._last_arrival: dict[Pair, float] = defaultdict(float)
        self._dead: set[str] = set()

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def after(self, delay: float, happen: Callable[[], None]) -> None:
        """Have something happen from outside."""
        self._at(self.now + delay, happen)

    def tell(self, name: str, sends: Iterable[Send] = ()) -> None:
        """Send a participant's answers to an order from outside."""
        for send in sends:
            self._send(name, send)
        if name in self._programs:
            self._look(name)

    def begin(self, name: str) -> None:
        """Begin the program of a participant that was added to `members` later."""
        self._programs[name] = self.members[name].program()
        self._resume(name)

    def kill(self, name: str) -> None:
        """Kill a participant: messages to it are lost, those that it sent still arrive."""
        self._dead.add(name)
        self._programs.pop(name, None)
        self._waiting.pop(name, None)
        for pair, flying in self.flying.items():
            if pair[1] == name:
                flying.clear()

    def cut(self, name: str, dead: str) -> None:
        """From now on `name` takes in nothing that `dead` sent."""
        self.flying[dead, name].clear()

    def revive(self, name: str, member: Participant) -> None:
        """One of that name is among the members (again); `begin` begins its program."""
        self._dead.discard(name)
        self.members[name] = member

    def run(self) -> float:
        """Run to the end, and return the time of it. Raises Deadlock, or what a watcher raises."""
        for name, program in self._programs.items():
            start = self._conditions.starts.get(name, 0.0)
            self._at(start, lambda name=name, program=program: self._start(name, program))
        while self._due:
            self.now, _, _, happen = heapq.heappop(self._due)
            happen()
        if self._waiting:
            raise Deadlock("; ".join(f"{name} waits for {until.awaited}" for name, until in self._waiting.items()))
        return max(self.ended.values())

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (time, self._conditions.random.random(), self._count, happen))

    def _start(self, name: str, program: Steps[None]) -> None:
        if self._programs.get(name) is program:  # it may have died before its first step
            self._resume(name)

    def _resume(self, name: str) -> None:
        program, answer = self._programs[name], None
        try:
            while True:
                match program.send(answer):
                    case Until() as until if not until.condition():
                        self._waiting[name] = until
                        break
                    case effect:
                        answer = self._carry_out(name, effect)
        except StopIteration:
            self.ended[name] = self.now
        self._settled(name)

    def _carry_out(self, name: str, effect: object) -> Step | None:
        match effect:
            case Send() as send:
                self._send(name, send)
            case Advance(iteration):
                for watcher in self._watchers:
                    watcher.advanced(name, iteration)
            case LocalCompute(parameters, iteration):
                step = Step()
                change = self._conditions.change(name, iteration, parameters)
                self._at(
                    self.now + self._conditions.step_time(name, iteration), lambda: self._finish(name, step, change)
                )
                return step
        return None

    def _finish(self, name: str, step: Step, change: Tensor) -> None:
        step.finish(change)
        self._look(name)

    def _send(self, sender: str, send: Send) -> None:
        pair = (sender, send.to)
        if send.to in self._dead:
            return
        arrival = self.now + send.after_s + self._conditions.delay(*pair)
        if self._conditions.in_order and not send.after_s:
            arrival = self._last_arrival[pair] = max(arrival, self._last_arrival[pair])
        self.log.append((pair, send.message))
        self.flying[pair].append(send.message)
        self._at(arrival, lambda: self._deliver(pair, send.message))

    def _deliver(self, pair: Pair, message: Message) -> None:
        sender, receiver = pair
        flying = self.flying[pair]
        place = next((index for index, other in enumerate(flying) if other is message), None)
        if place is None:
            return  # lost with the one that died, or cut off
        del flying[place]
        for answer in self.members[receiver].receive(sender, message):
            self._send(receiver, answer)
        self._look(receiver)

    def _look(self, name: str) -> None:
        until = self._waiting.get(name)
        if until is not None and until.condition():
            del self._waiting[name]
            self._resume(name)
        else:
            self._settled(name)

    def _settled(self, name: str) -> None:
        if name in self._dead:
            return
        for watcher in self._watchers:
            watcher.settled(name)
