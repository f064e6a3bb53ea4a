"""Protocols without a transport: the effects that a member's program yields, and the base classes of participants.

A member's `program` is a generator. The driver carries its effects out, over sockets or in simulated time, and resumes
it:

    program yields        driver does                                            program is answered
    Send                  carries the message, when it can                       None
    LocalCompute          begins a local step in the background                  a Step, done later
    Until                 resumes the program once the condition holds           None
    Advance               notes the iteration that the member has entered        None

Between two `Until`s nothing else happens to the member: only while the program waits does the driver hand over a
message (`receive`) or mark a Step done. It then checks the condition again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from testbed.sync.gossip.message import Message
from testbed.sync.gossip.neighbours import Neighbours

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a member, without waiting. Messages may overtake each other."""

    #: The receiver's name. A message to the member itself is a reminder.
    to: str
    message: Message
    #: Seconds after which a reminder arrives; 0 for messages to others.
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LocalCompute:
    """Begin a local step from these parameters; the program gets a Step back."""

    #: The parameters at which the step begins, flat. Nothing may write to them until the step is done.
    parameters: Tensor
    #: The number of the step.
    iteration: int


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until a condition holds."""

    condition: Callable[[], bool]
    #: The awaited event in words, for errors.
    awaited: str


@dataclass(frozen=True, slots=True)
class Advance:
    """Record that the member has entered an iteration."""

    iteration: int


Effect = Send | LocalCompute | Until | Advance

Result = TypeVar("Result")

#: A part of a program: a generator that yields effects, is sent their answers, and returns a result.
Steps = Generator[Effect, Any, Result]


class Step:
    """A local step, and once it is done its change to the parameters (plain SGD: minus rate x gradient)."""

    def __init__(self) -> None:
        self._change: Tensor | None = None

    def finish(self, change: Tensor) -> None:
        """Mark the step done. Called by the driver; `change` has the parameters' shape."""
        self._change = change

    @property
    def done(self) -> bool:
        """True once the step is done."""
        return self._change is not None

    @property
    def change(self) -> Tensor:
        """The change to add to the parameters. Raises RuntimeError before the step is done."""
        if self._change is None:
            raise RuntimeError("the local step is still under way; wait until it is done")
        return self._change


class Participant(ABC):
    """One member's protocol: a program, and answers to messages. Some participants, such as servers, have no model."""

    name: str

    @property
    def model(self) -> Tensor:
        """The parameters of the participant's model, flat. Raises ValueError for a participant without a model."""
        raise ValueError(f"{self.name} has no model of its own")

    @property
    def patience(self) -> int:
        """The number of other members' iterations that one wait may last."""
        return 1

    @property
    def metrics(self) -> Mapping[str, float]:
        """Figures of the protocol for the member's next report, by name."""
        return {}

    @abstractmethod
    def program(self) -> Steps[None]:
        """Yield the effects of all iterations; the generator ends after the last one."""

    @abstractmethod
    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Handle a message, and return the messages to send at once. Called after the program's end, too."""

    def remove(self, gone: str) -> Iterable[Send]:
        """Go on without a member that died, and return the messages to send at once.

        Raises:
            ValueError: The protocol, or this participant, needs that member.
        """
        raise ValueError(f"{self.name} can't go on without {gone}: its protocol needs every member")

    def promise(self, ahead: int) -> int:
        """Promise to enter no iteration from the returned one on until `commit` or `abort`.

        The member may enter at most `ahead` - 1 more iterations before the returned one.

        Raises:
            ValueError: The protocol can't change its graph, or can't change it now.
        """
        raise ValueError(f"{self.name} can't change to another graph: its protocol has a fixed graph")

    def commit(self, iteration: int, neighbours: Neighbours) -> Iterable[Send]:
        """Use other neighbours from `iteration` on, after a promise, and return the messages to send at once.

        Raises:
            ValueError: The protocol can't train with these neighbours.
        """
        raise ValueError(f"{self.name} can't change to another graph: its protocol has a fixed graph")

    def abort(self) -> None:
        """Keep the graph after a promise. Raises ValueError if the protocol makes no promises."""
        raise ValueError(f"{self.name} made no promise: its protocol has a fixed graph")

    def stale(self, to: str, message: Message, later: Sequence[Message]) -> bool:
        """Return whether a message that waits to be sent to a member has become useless, so that it is not sent.

        Args:
            to: The receiver.
            message: The message.
            later: The messages that wait behind it for the same receiver.
        """
        return False


class TrainingMember(Participant):
    """A participant that trains a model.

    Attributes:
        name: The member's name.
        parameters: The parameters, 1-dimensional, float32, on the host. The tensor is replaced and never written to,
            because messages and local steps refer to it.
    """

    def __init__(self, name: str, parameters: Tensor) -> None:
        self.name = name
        self.parameters = parameters

    @property
    def model(self) -> Tensor:
        """The member's parameters."""
        return self.parameters

    def begin(self, iteration: int) -> Steps[Step]:
        """Enter an iteration and begin its local step."""
        yield Advance(iteration)
        step: Step = yield LocalCompute(self.parameters, iteration)
        return step

    def finished(self, step: Step, iteration: int) -> Steps[Tensor]:
        """Wait for a step that began earlier, and return its change to the parameters."""
        yield Until(lambda: step.done, f"its own step of iteration {iteration}")
        return step.change

    def local_step(self, iteration: int) -> Steps[Tensor]:
        """Enter an iteration, make its local step, and return the step's change to the parameters."""
        step = yield from self.begin(iteration)
        return (yield from self.finished(step, iteration))

    def local_steps(self, iteration: int, count: int) -> Steps[Tensor]:
        """Make an iteration's `count` local steps one after the other, and return the parameters after them."""
        local = self.parameters
        for number in range(iteration * count, (iteration + 1) * count):
            step: Step = yield LocalCompute(local, number)
            yield from self.finished(step, number)
            local = local + step.change
        return local

    def unexpected(self, sender: str, message: Message) -> TypeError:
        """Return the error for a message that this protocol does not have."""
        return TypeError(f"{self.name} cannot take {message} from {sender}; all members must follow one protocol")


class ServedMember(TrainingMember):
    """A member whose protocol has a server, which alone takes in members that join and drops lost ones.

    A member that joins begins in an iteration that no other member has entered yet. So from a promise until `commit` or
    `abort` this member enters no iteration from the promised one on: a subclass asks `may_enter` first.
    """

    def __init__(self, name: str, parameters: Tensor, first: int) -> None:
        """Begin in the iteration `first`: 0, unless the member joins while the others train."""
        super().__init__(name, parameters)
        self._first = first
        self._entered = first
        self._end = inf  # the first iteration that it may not enter

    def remove(self, gone: str) -> Iterable[Send]:
        """Go on: members wait for the server alone, and without a server the run ends."""
        return ()

    def promise(self, ahead: int) -> int:
        """Promise to enter no iteration from the returned one on until `commit` or `abort`.

        The returned iteration is `ahead` after the newest one that this member has entered.
        """
        self._end = self._entered + ahead
        return self._entered + ahead

    def commit(self, iteration: int, neighbours: Neighbours) -> Iterable[Send]:
        """End the promise, so that this member enters iterations again. It does not use `neighbours`."""
        self.abort()
        return ()

    def abort(self) -> None:
        """End the promise, so that this member enters iterations again: no member joins."""
        self._end = inf

    def may_enter(self, iteration: int) -> bool:
        """Return True if no promise keeps the member from entering the iteration."""
        return iteration < self._end

    def enter(self, iteration: int) -> Steps[None]:
        """Enter an iteration after the first, and record that."""
        self._entered = iteration
        yield Advance(iteration)
