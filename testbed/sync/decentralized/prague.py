"""Prague (arXiv 1909.08029): after each step a member averages within a random group that a generator gives it.

Groups that overlap must not wait for each other in a circle. The generator enters a group into the buffers of all its
members at once, and each member takes the groups of its buffer in that order: the oldest unfinished group is next for
all of its members, so that it will be done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from torch import Tensor

from testbed.sync.decentralized.average import Average
from testbed.sync.decentralized.effects import Advance, Member, Message, Party, Send, Steps, Until


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The sender has made a step and asks for its next group."""


@dataclass(frozen=True, slots=True)
class Leaving(Message):
    """The sender's training is done: it asks for the groups that still count on it."""


@dataclass(frozen=True, slots=True)
class Group(Message):
    """A group to average in; `number` tells groups of the same members apart."""

    number: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Groups(Message):
    """The groups that a member which leaves still has to serve, in order."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Part(Message):
    """The sender's parameters for group `number`."""

    number: int
    parameters: Tensor


class GroupGenerator(Party):
    """Gives out groups of `size` members, drawn at random; answers each member's next group in the buffers' order."""

    def __init__(self, name: str, members: Iterable[str], size: int, random: Random) -> None:
        if size < 2:
            raise ValueError(f"groups of {size}: nobody would average with anybody; take 2 or more")
        self.name = name
        self._present = list(members)
        self._size = size
        self._random = random
        self._buffers: dict[str, deque[Group]] = {member: deque() for member in self._present}
        self._count = 0

    def program(self) -> Steps[None]:
        yield from ()

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case Ready():
                return (Send(sender, self.next_group(sender)),)
            case Leaving():
                return (Send(sender, Groups(self.leave(sender))),)
        raise TypeError(f"{self.name} gives out groups; it cannot take {message} from {sender}")

    def next_group(self, member: str) -> Group:
        """The oldest group in the member's buffer, which a new one enters where there is none."""
        if not self._buffers[member]:
            self._form(member)
        return self._buffers[member].popleft()

    def leave(self, member: str) -> tuple[Group, ...]:
        """Puts the member into no more groups; those that it is in and has not been given."""
        self._present.remove(member)
        left = tuple(self._buffers[member])
        self._buffers[member].clear()
        return left

    def _form(self, member: str) -> None:
        others = [other for other in self._present if other != member]
        chosen = self._random.sample(others, min(self._size - 1, len(others)))
        group = Group(self._count, (member, *chosen))
        self._count += 1
        for one in group.members:
            self._buffers[one].append(group)


class PragueMember(Member):
    """Trains for `iterations` iterations, each a step and an average in the group that `generator` gives."""

    def __init__(self, name: str, generator: str, parameters: Tensor, iterations: int) -> None:
        super().__init__(name, parameters)
        self._generator = generator
        self._iterations = iterations
        self._given: list[tuple[Group, ...]] = []
        self._parts: dict[int, list[Tensor]] = defaultdict(list)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case Group():
                self._given.append((message,))
            case Groups(groups):
                self._given.append(groups)
            case Part(number, parameters):
                self._parts[number].append(parameters)
            case _:
                raise self.unexpected(sender, message)
        return ()

    def program(self) -> Steps[None]:
        for iteration in range(self._iterations):
            change = yield from self.local_step(iteration)
            self.parameters = self.parameters + change
            yield from self._average_in(Ready())
        yield Advance(self._iterations)
        yield from self._average_in(Leaving())

    def _average_in(self, request: Message) -> Steps[None]:
        yield Send(self._generator, request)
        yield Until(lambda: bool(self._given), f"groups from {self._generator}")
        for group in self._given.pop():
            yield from self._reduce(group)

    def _reduce(self, group: Group) -> Steps[None]:
        others = [other for other in group.members if other != self.name]
        for other in others:
            yield Send(other, Part(group.number, self.parameters))
        yield Until(lambda: len(self._parts[group.number]) == len(others), f"the parts of {group}")
        average = Average()
        for part in (self.parameters, *self._parts.pop(group.number)):
            average.add(part, 1.0)
        self.parameters = average.value
