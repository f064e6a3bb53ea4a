"""What a member of decentralized training asks of whoever drives it, and is told: protocols without a transport.

A member's `program` is a generator. It yields effects; the driver carries them out, over sockets or in simulated
time, and resumes it:

    program yields        driver does                                            program is answered
    Send                  carries the message, when it can                       None
    LocalCompute          begins a local step on the side                        a Step, done later
    Until                 resumes the program once the condition holds           None
    Advance               notes the iteration that the member has entered        None

Between two `Until`s nothing else happens to the member: the driver hands over a message (`receive`) or marks a
Step done only while the program waits, then looks at the condition again.

A member whose protocol has a server: whoever else comes or goes is that server's business.
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
    """Give `message` to the member `to`; the sender does not wait for it. Messages may overtake each other.

    What it gives to itself may come `after_s` seconds: a reminder.
    """

    to: str
    message: Message
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LocalCompute:
    """Begin the local step of `iteration` at `parameters`, which must not change meanwhile."""

    parameters: Tensor
    iteration: int


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until `condition` holds; `awaited` says for what, to whoever asks why a member stands still."""

    condition: Callable[[], bool]
    awaited: str


@dataclass(frozen=True, slots=True)
class Advance:
    """The member has entered `iteration`."""

    iteration: int


Effect = Send | LocalCompute | Until | Advance

Result = TypeVar("Result")

#: A part of a program: yields effects, is answered, returns a result.
Steps = Generator[Effect, Any, Result]


class Step:
    """A local step under way: the change it makes to the parameters, once done (plain SGD: minus rate x gradient)."""

    def __init__(self) -> None:
        self._change: Tensor | None = None

    def finish(self, change: Tensor) -> None:
        """The driver's word that the step is done. `change` has the parameters' shape."""
        self._change = change

    @property
    def done(self) -> bool:
        """Whether the change is there."""
        return self._change is not None

    @property
    def change(self) -> Tensor:
        """What to add to the parameters; RuntimeError before the step is done."""
        if self._change is None:
            raise RuntimeError("the local step is still under way; wait until it is done")
        return self._change


class Participant(ABC):
    """One that takes part in gossip, whether or not it has a model of its own."""

    name: str

    @property
    def model(self) -> Tensor:
        """Where its model is; ValueError for one that has none."""
        raise ValueError(f"{self.name} has no model of its own")

    @property
    def patience(self) -> int:
        """How many of the others' iterations one wait may last."""
        return 1

    @property
    def metrics(self) -> Mapping[str, float]:
        """Figures of the protocol's own, for the member's next report."""
        return {}

    @abstractmethod
    def program(self) -> Steps[None]:
        """All that the participant does of itself; it ends when its last iteration is done."""

    @abstractmethod
    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Takes a message in and says what to send at once in answer; goes on after the program has ended."""

    def remove(self, gone: str) -> Iterable[Send]:
        """Another has died: go on without it; what to send at once. ValueError when the protocol, or this participant,
        can't."""
        raise ValueError(f"{self.name} can't go on without {gone}: its protocol counts on everybody")

    def promise(self, ahead: int) -> int:
        """Enter `ahead` - 1 more iterations at most until `commit` or `abort`; the one that it will not enter."""
        raise ValueError(f"{self.name} can't go over to another graph: its protocol has one")

    def commit(self, iteration: int, neighbours: Neighbours) -> Iterable[Send]:
        """After a promise: from `iteration` on it stands in another graph. What to send at once; ValueError when its
        place there is none for it."""
        raise ValueError(f"{self.name} can't go over to another graph: its protocol has one")

    def abort(self) -> None:
        """After a promise: the graph stays as it is."""
        raise ValueError(f"{self.name} promised nothing: its protocol has one graph")

    def stale(self, to: str, message: Message, later: Sequence[Message]) -> bool:
        """Whether a message that has waited for its turn is of no use to `to` any more; `later` ones wait behind it."""
        return False


class TrainingMember(Participant):
    """A participant that trains. `parameters` is 1-dimensional and replaced, never written to: others may hold it."""

    def __init__(self, name: str, parameters: Tensor) -> None:
        self.name = name
        self.parameters = parameters

    @property
    def model(self) -> Tensor:
        return self.parameters

    def begin(self, iteration: int) -> Steps[Step]:
        """Enters `iteration` and begins its local step."""
        yield Advance(iteration)
        step: Step = yield LocalCompute(self.parameters, iteration)
        return step

    def finished(self, step: Step, iteration: int) -> Steps[Tensor]:
        """Waits for a step begun earlier; the change that it makes."""
        yield Until(lambda: step.done, f"its own step of iteration {iteration}")
        return step.change

    def local_step(self, iteration: int) -> Steps[Tensor]:
        """Enters `iteration` and makes its local step, at rest; the change that it makes."""
        step = yield from self.begin(iteration)
        return (yield from self.finished(step, iteration))

    def local_steps(self, iteration: int, count: int) -> Steps[Tensor]:
        """Make the `count` local steps of `iteration` one after the other; the parameters after them."""
        local = self.parameters
        for number in range(iteration * count, (iteration + 1) * count):
            step: Step = yield LocalCompute(local, number)
            yield from self.finished(step, number)
            local = local + step.change
        return local

    def unexpected(self, sender: str, message: Message) -> TypeError:
        """The error for a message that this protocol does not have."""
        return TypeError(f"{self.name} cannot take {message} from {sender}; all members must follow one protocol")


class ServedMember(TrainingMember):
    """It comes in the iteration `first`, 0 if it is there from the begin.

    Others that come need an iteration that nobody is in yet. So it holds back, from a promise until it is told to turn
    or that there is nothing to turn to, what says that it has entered that iteration.
    """

    def __init__(self, name: str, parameters: Tensor, first: int) -> None:
        super().__init__(name, parameters)
        self._first = first
        self._entered = first
        self._end = inf  # of the iterations that it may say it has entered

    def remove(self, gone: str) -> Iterable[Send]:
        """Nobody waits for who has died: nobody goes on without a server on which others hang."""
        return ()

    def promise(self, ahead: int) -> int:
        self._end = self._entered + ahead
        return self._entered + ahead

    def commit(self, iteration: int, neighbours: Neighbours) -> Iterable[Send]:
        self.abort()
        return ()

    def abort(self) -> None:
        self._end = inf

    def may_enter(self, iteration: int) -> bool:
        """Whether no promise is against it."""
        return iteration < self._end

    def enter(self, iteration: int) -> Steps[None]:
        """Say that it has entered an iteration that follows."""
        self._entered = iteration
        yield Advance(iteration)
