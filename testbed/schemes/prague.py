"""Prague: after each step a member averages within a random group that a generator gives it.

Groups that overlap must not wait for each other in a cycle. The generator enters a group into the buffers of all its
members at once, and each member takes the groups of its buffer in order: the oldest unfinished group is next for all of
its members, so it will be finished.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Self

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of
from testbed.schemes.options import InGraph, Misfit, Options, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, Participant, Send, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message
from testbed.sync.gossip.neighbours import WeightedMean

if TYPE_CHECKING:
    from torch import Tensor

#: Bytes of a group's number, with which the group begins inside a list of groups.
NUMBER_BYTES = 4


@dataclass(frozen=True)
class PragueOptions(Options):
    """Options of Prague."""

    #: The members of a group.
    group: int = limited(3, ge=2)


SCHEME = Scheme(
    name="prague",
    options=PragueOptions,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Luo et al. 2020, ASPLOS, arXiv 1909.08029",
)


def assign(options: PragueOptions, setting: Setting) -> GossipAssignment:
    """Make every member every other's neighbour, and the first one run the generator.

    Raises:
        Misfit: A group is larger than all members together.
    """
    members = setting.view.names
    if options.group > len(members):
        raise Misfit("group", f"{options.group}, where there are {len(members)} workers", f"{len(members)} at most")
    rules = {"generator": members[0]}
    return GossipAssignment(protocol="prague", graph=graph_of(InGraph(graph="complete"), setting), rules=rules)


@message(10)
class Ready(Message):
    """The sender has made a step and asks for its next group."""


@message(11)
class Leaving(Message):
    """The sender has finished its training and asks for the groups that still count on it."""


@message(12)
class DrawnGroup(Message):
    """A group to average in; `number` tells groups of the same members apart."""

    number: int
    members: tuple[str, ...]

    def to_body(self, members: tuple[str, ...]) -> bytes:
        """Return one byte for each member of the run: 1 for a member of the group."""
        return bytes(name in self.members for name in members)

    @classmethod
    def of_body(cls, body: memoryview, members: tuple[str, ...], **numbers: int) -> Self:
        """Return the group in a message's body. Raises ValueError for a body of another length."""
        if len(body) != len(members):
            raise ValueError(f"a group's message has {len(body)} bytes, not one for each of {len(members)} members")
        return cls(**numbers, members=tuple(name for name, there in zip(members, body, strict=True) if there))


@message(13)
class DrawnGroups(Message):
    """The groups in which a member that leaves must still take part, in order."""

    groups: tuple[DrawnGroup, ...]

    def to_body(self, members: tuple[str, ...]) -> bytes:
        """Return each group's number and members, one after the other."""
        return b"".join(group.number.to_bytes(NUMBER_BYTES, "little") + group.to_body(members) for group in self.groups)

    @classmethod
    def of_body(cls, body: memoryview, members: tuple[str, ...], **numbers: int) -> Self:
        """Return the groups in a message's body. Raises ValueError if the body is cut short."""
        size = NUMBER_BYTES + len(members)
        if len(body) % size:
            raise ValueError("the list of groups in a message is cut short")
        parts = (body[start : start + size] for start in range(0, len(body), size))
        heads = ((int.from_bytes(part[:NUMBER_BYTES], "little"), part[NUMBER_BYTES:]) for part in parts)
        return cls(tuple(DrawnGroup.of_body(rest, members, number=number) for number, rest in heads))


@message(14)
class GroupPart(Message):
    """The sender's parameters for group `number`."""

    number: int
    parameters: Tensor


class GroupGenerator:
    """Draws random groups of `size` members, and keeps a buffer of drawn groups for each member."""

    def __init__(self, members: Iterable[str], size: int, random: Random) -> None:
        self._present = list(members)
        self._size = size
        self._random = random
        self._buffers: dict[str, deque[DrawnGroup]] = {member: deque() for member in self._present}
        self._count = 0

    def next_group(self, member: str) -> DrawnGroup:
        """Return the oldest group in the member's buffer. An empty buffer gets a new group first."""
        if not self._buffers[member]:
            self._form(member)
        return self._buffers[member].popleft()

    def leave(self, member: str) -> tuple[DrawnGroup, ...]:
        """Put the member into no further groups. Return the groups in its buffer."""
        self._present.remove(member)
        left = tuple(self._buffers[member])
        self._buffers[member].clear()
        return left

    def _form(self, member: str) -> None:
        others = [other for other in self._present if other != member]
        chosen = self._random.sample(others, min(self._size - 1, len(others)))
        group = DrawnGroup(self._count, (member, *chosen))
        self._count += 1
        for one in group.members:
            self._buffers[one].append(group)


class PragueMember(TrainingMember):
    """Trains for `iterations` iterations, each a step and an average in the group that `generator` gives.

    One wait may last as many iterations as there are `members`: a slow member may first have a group with each of them.
    """

    def __init__(self, name: str, generator: str, parameters: Tensor, iterations: int, members: int) -> None:
        super().__init__(name, parameters)
        self._members = members
        self._generator = generator
        self._iterations = iterations
        self._given: list[tuple[DrawnGroup, ...]] = []
        self._parts: dict[int, list[Tensor]] = defaultdict(list)

    @property
    def patience(self) -> int:
        """The iterations that one wait may last: the number of members."""
        return self._members

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Keep groups that the generator gives out, and parts of groups' means."""
        match message:
            case DrawnGroup():
                self._given.append((message,))
            case DrawnGroups(groups):
                self._given.append(groups)
            case GroupPart(number, parameters):
                self._parts[number].append(parameters)
            case _:
                raise self.unexpected(sender, message)
        return ()

    def program(self) -> Steps[None]:
        """Yield a local step and the average in a group, in each iteration, and then the groups that are left."""
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

    def _reduce(self, group: DrawnGroup) -> Steps[None]:
        others = [other for other in group.members if other != self.name]
        for other in others:
            yield Send(other, GroupPart(group.number, self.parameters))
        yield Until(lambda: len(self._parts[group.number]) == len(others), f"the parts of {group}")
        average = WeightedMean()
        for part in (self.parameters, *self._parts.pop(group.number)):
            average.add(part, 1.0)
        self.parameters = average.value


class GeneratingMember(PragueMember):
    """A member of Prague whose process runs the generator of all groups as well."""

    def __init__(self, name: str, groups: GroupGenerator, parameters: Tensor, iterations: int, members: int) -> None:
        super().__init__(name, name, parameters, iterations, members)
        self._groups = groups

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Answer a member that is ready with its next group, and one that leaves with its drawn groups."""
        match message:
            case Ready():
                return (Send(sender, self._groups.next_group(sender)),)
            case Leaving():
                return (Send(sender, DrawnGroups(self._groups.leave(sender))),)
            case _:
                return super().receive(sender, message)


def build(options: PragueOptions, training: GossipTraining) -> Participant:
    """Return the participant of a member, or of the member whose process runs the generator as well."""
    name, generator, members = training.name, training.node.rules["generator"], len(training.members)
    if name != generator:
        return PragueMember(name, generator, training.parameters, training.iterations, members)
    groups = GroupGenerator(training.members, options.group, training.random)
    return GeneratingMember(name, groups, training.parameters, training.iterations, members)
