"""A member of Hop.

    iteration k   send x_k to the out-neighbours, make a local step at x_k, receive, average:  x_k+1 = mean + step
    advance       take a token from each out-neighbour; now in k + 1; give a token to each in-neighbour
    leap          take J tokens of each; now in k + J; give J tokens; say what is skipped; renew: x_k+J = the average
                  of iteration k + J - 1

The leap's order matters. Giving tokens and announcing the skip only after the renewal would deadlock: the members whose
updates the leaping member waits for may wait for these. A skip without an announcement deadlocks a member if more than
`backup` of its in-neighbours skipped the same iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from testbed.schemes.hop.credits import Credits
from testbed.schemes.hop.neighbourhood import Neighbourhood
from testbed.schemes.hop.reception import Backup, Entry, HopRules, Reception, Stale
from testbed.sync.gossip.effects import Advance, LocalCompute, Send, Step, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message
from testbed.sync.gossip.neighbours import Neighbours

if TYPE_CHECKING:
    from torch import Tensor


@message(1)
class HopUpdate(Message):
    """The sender's parameters at the start of `iteration`."""

    iteration: int
    parameters: Tensor


@message(2)
class Skipped(Message):
    """The sender will send no update of the iterations `first` to `last`; they count as empty updates."""

    first: int
    last: int


@message(3)
class Tokens(Message):
    """`count` tokens, each the right to advance one iteration as far as the sender is concerned."""

    count: int


@message(4)
class Ack(Message):
    """The sender has averaged the receiver's update of `iteration` (notify-ack)."""

    iteration: int


class HopMember(TrainingMember):
    """Trains for `iterations` iterations by `rules`, which are the same for all members.

    `iteration` is its present iteration: `first` - 1 before the first, `iterations` at the end. A member that joins
    while others train begins in the iteration `first`, in which the graph changes (see Neighbourhood), with the mean
    of its in-neighbours' parameters instead of its own.

    Raises:
        ValueError: `neighbours` are too few for the rules.
    """

    def __init__(
        self, neighbours: Neighbours, rules: HopRules, parameters: Tensor, iterations: int, first: int = 0
    ) -> None:
        super().__init__(neighbours.member, parameters)
        rules.check(neighbours)
        self.iteration = first - 1
        self.credits = None if rules.max_ig is None else Credits(rules.max_ig, taken=first)
        self.reception: Reception = (Stale if rules.staleness else Backup)(neighbours, rules)
        self._neighbourhood = Neighbourhood(neighbours)
        self._rules = rules
        self._first = first
        self._iterations = iterations
        self._given: Counter[str] = Counter()
        self._acked = dict.fromkeys(neighbours.targets, first - 1)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Handle an update, a skip, tokens or an acknowledgement. Nothing is sent in answer."""
        match message:
            case HopUpdate(iteration, parameters):
                self.reception.enqueue(Entry(parameters, iteration, sender))
            case Skipped(first, last):
                for iteration in range(first, last + 1):
                    self.reception.enqueue(Entry(None, iteration, sender))
            case Tokens(count) if self.credits:
                self.credits.put(sender, count)
            case Ack(iteration):
                if sender in self._acked:
                    self._acked[sender] = max(self._acked[sender], iteration)
            case _:
                raise self.unexpected(sender, message)
        return ()

    def remove(self, gone: str) -> Iterable[Send]:
        """Go on without a member that died: send it nothing, wait for nothing from it, and drop its tokens.

        Raises:
            ValueError: No neighbour is left.
        """
        self._neighbourhood.remove(gone)
        self.reception.remove(gone)
        self._acked.pop(gone, None)
        del self._given[gone]
        if self.credits:
            self.credits.remove(gone)
        return ()

    def promise(self, ahead: int) -> int:
        """Promise to enter no iteration from the returned one on until `commit` or `abort`.

        The member may enter at most `ahead` - 1 more iterations before the returned one.

        A member that has not begun counts as being in its first iteration, in which its neighbours do not change.

        Raises:
            ValueError: A committed change of neighbours has not taken place yet.
        """
        return self._neighbourhood.prepare(max(self.iteration, self._first) + ahead)

    def commit(self, iteration: int, neighbours: Neighbours) -> Iterable[Send]:
        """Set other neighbours from `iteration` on, and return the messages to send at once.

        Raises:
            ValueError: The iteration is before the promised one, or the neighbours are too few for the rules.
        """
        self._rules.check(neighbours)
        self._neighbourhood.commit(iteration, neighbours)
        self.reception.expect(self._neighbourhood.sources)
        return tuple(self._give())

    def abort(self) -> None:
        """Cancel the change of neighbours that was prepared."""
        self._neighbourhood.abort()

    def program(self) -> Steps[None]:
        """Yield the effects of all iterations: send, step and average, advance."""
        yield from self._enter(self._first)
        if self._first:
            yield from self._join()
        while self.iteration < self._iterations:
            yield from self._send()
            yield from self._step_and_average()
            yield from self._advance()

    def _enter(self, iteration: int) -> Steps[None]:
        self.iteration = iteration
        yield Advance(iteration)
        yield from self._give()

    def _join(self) -> Steps[None]:
        """Run the iteration in which the member joins: it begins with the average instead of ending with it."""
        self.parameters = yield from self.reception.begun()
        yield from self._send()
        step: Step = yield LocalCompute(self.parameters, self.iteration)
        change = yield from self.finished(step, self.iteration)
        yield from self._acknowledge()
        self.parameters = self.parameters + change
        yield from self._advance()

    def _give(self) -> Iterator[Send]:
        """Send each in-neighbour its missing tokens: it gets one for each iteration that this member has entered."""
        if self.credits is None:
            return
        for source in self._neighbourhood.sources:
            if (count := self.iteration + 1 - self._given[source]) > 0:
                self._given[source] += count
                yield Send(source, Tokens(count))

    def _send(self) -> Steps[None]:
        if self._rules.notify_ack:
            last = self.iteration - 1
            yield Until(lambda: min(self._acked.values()) >= last, f"acknowledgements of iteration {last}")
        for target in self._neighbourhood.neighbours.targets:
            if self._is_of_use_to(target, self.iteration):
                yield Send(target, HopUpdate(self.iteration, self.parameters))

    def stale(self, to: str, message: Message, later: Sequence[Message]) -> bool:
        """Return True for an update that `to` would drop, or, under staleness, that a newer one behind it replaces."""
        if not isinstance(message, HopUpdate):
            return False
        superseded = bool(self._rules.staleness) and any(isinstance(other, HopUpdate) for other in later)
        return superseded or not self._is_of_use_to(to, message.iteration)

    def _is_of_use_to(self, target: str, iteration: int) -> bool:
        """Return False where the target's tokens show that it is too far ahead to count that iteration's update."""
        if self.credits is None:
            return True
        return self.credits.lead(target) + self.iteration - iteration <= self._rules.slack

    def _step_and_average(self) -> Steps[None]:
        step: Step = yield LocalCompute(self.parameters, self.iteration)
        if not self._rules.parallel:
            yield from self.finished(step, self.iteration)
        own = Entry(self.parameters, self.iteration, self.name)
        mean = yield from self.reception.average(own, self.iteration)
        yield from self._acknowledge()
        change = yield from self.finished(step, self.iteration)
        self.parameters = mean + change

    def _acknowledge(self) -> Steps[None]:
        if self._rules.notify_ack:
            for source in self._neighbourhood.neighbours.sources:
                yield Send(source, Ack(self.iteration))

    def _advance(self) -> Steps[None]:
        now = self.iteration
        jump = 1
        yield Until(lambda: self._may_enter(now + 1), "a token from each out-neighbour, or the graph's change")
        if self.credits:
            jump = self._jump(self.credits)
            self.credits.take(jump, self._neighbourhood.neighbours.targets)
        yield from self._enter(now + jump)
        if jump > 1:
            yield from self._renew(now)
        if self.iteration == self._neighbourhood.changing:
            self._change_neighbours()
        self.reception.begin(self.iteration)

    def _may_enter(self, iteration: int) -> bool:
        tokens = self.credits is None or self.credits.least(self._neighbourhood.givers(iteration)) >= 1
        return tokens and self._neighbourhood.open(iteration)

    def _jump(self, credits: Credits) -> int:
        if not self._rules.skipping:
            return 1
        now, givers = self.iteration, self._neighbourhood.neighbours.targets
        wanted = min(now + credits.jump(self._rules.max_jump, self._rules.quantile, givers), self._iterations)
        reach = self.reception.reach()
        end = self._neighbourhood.leap_end(wanted if reach is None else min(wanted, reach))
        return max(int(end) - now, 1)

    def _change_neighbours(self) -> None:
        neighbours = self._neighbourhood.change()
        self.reception.change_neighbours(neighbours)
        self._acked = {target: self._acked.get(target, self.iteration - 1) for target in neighbours.targets}

    def _renew(self, left: int) -> Steps[None]:
        """After a leap from iteration `left`, announce the skipped updates, and average those of the one before."""
        for target in self._neighbourhood.neighbours.targets:
            yield Send(target, Skipped(left + 1, self.iteration - 1))
        before = self.iteration - 1
        self.reception.begin(before)
        own = Entry(self.parameters, left + 1, self.name)
        self.parameters = yield from self.reception.average(own, before)
