"""A member of Hop.

    iteration k   send x_k to the out-neighbours, make a local step at x_k, receive, average:  x_k+1 = mean + step
    advance       take a token from each out-neighbour; now in k + 1; give a token to each in-neighbour
    leap          take J tokens of each; now in k + J; give J tokens; say what is skipped; renew: x_k+J = the average
                  of iteration k + J - 1

The leap's order matters. Tokens given, and the skip told, only after the renewal deadlock: those whose updates it
waits for may be waiting for them. A skip that is not told deadlocks whoever counts on more than `backup` of those
that skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from testbed.sync.decentralized.effects import Advance, Compute, Member, Message, Send, Step, Steps, Until
from testbed.sync.decentralized.hop.credits import Credits
from testbed.sync.decentralized.hop.messages import Ack, Skipped, Tokens, Update
from testbed.sync.decentralized.hop.reception import Backup, Reception, Stale
from testbed.sync.decentralized.hop.rules import HopRules
from testbed.sync.decentralized.hop.updates import Entry
from testbed.sync.decentralized.neighbours import Neighbours


class HopMember(Member):
    """Trains for `iterations` iterations by `rules`, which are the same for all members.

    `iteration` is the one it is in, -1 before the first and `iterations` at the end.
    Raises ValueError when `neighbours` are too few for the rules.
    """

    def __init__(self, neighbours: Neighbours, rules: HopRules, parameters: Tensor, iterations: int) -> None:
        super().__init__(neighbours.member, parameters)
        rules.check(neighbours)
        self.iteration = -1
        self.credits = None if rules.max_ig is None else Credits(neighbours.targets, rules.max_ig)
        self.reception: Reception = (Stale if rules.staleness else Backup)(neighbours, rules)
        self._neighbours = neighbours
        self._rules = rules
        self._iterations = iterations
        self._acked = dict.fromkeys(neighbours.targets, -1)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case Update(iteration, parameters):
                self.reception.enqueue(Entry(parameters, iteration, sender))
            case Skipped(first, last):
                for iteration in range(first, last + 1):
                    self.reception.enqueue(Entry(None, iteration, sender))
            case Tokens(count) if self.credits:
                if sender in self.credits.held:
                    self.credits.put(sender, count)
            case Ack(iteration):
                if sender in self._acked:
                    self._acked[sender] = max(self._acked[sender], iteration)
            case _:
                raise self.unexpected(sender, message)
        return ()

    def forget(self, gone: str) -> None:
        """A member has died: nothing is sent to it or waited for any more, and its tokens are settled.

        Members whom no other is left to exchange with can't go on: ValueError.
        """
        if gone not in {*self._neighbours.sources, *self._neighbours.targets}:
            return
        self._neighbours = self._neighbours.without(gone)
        self.reception.forget(gone)
        if gone in self._acked:
            del self._acked[gone]
        if self.credits and gone in self.credits.held:
            self.credits.forget(gone)

    def program(self) -> Steps[None]:
        yield from self._enter(0)
        while self.iteration < self._iterations:
            yield from self._send()
            yield from self._learn()
            yield from self._advance()

    def _enter(self, iteration: int) -> Steps[None]:
        given = iteration - self.iteration
        self.iteration = iteration
        yield Advance(iteration)
        if self.credits:
            for source in self._neighbours.sources:
                yield Send(source, Tokens(given))

    def _send(self) -> Steps[None]:
        if self._rules.notify_ack:
            last = self.iteration - 1
            yield Until(lambda: min(self._acked.values()) >= last, f"acknowledgements of iteration {last}")
        for target in self._neighbours.targets:
            if self._is_of_use_to(target, self.iteration):
                yield Send(target, Update(self.iteration, self.parameters))

    def stale(self, to: str, message: Message, later: Sequence[Message]) -> bool:
        """An update that `to` would drop; under staleness also one that a newer update is about to replace."""
        if not isinstance(message, Update):
            return False
        superseded = bool(self._rules.staleness) and any(isinstance(other, Update) for other in later)
        return superseded or not self._is_of_use_to(to, message.iteration)

    def _is_of_use_to(self, target: str, iteration: int) -> bool:
        """False when the target's tokens show it to be so far ahead that it would drop that iteration's update."""
        if self.credits is None:
            return True
        return self.credits.lead(target) + self.iteration - iteration <= self._rules.slack

    def _learn(self) -> Steps[None]:
        step: Step = yield Compute(self.parameters, self.iteration)
        if not self._rules.parallel:
            yield from self.finished(step, self.iteration)
        own = Entry(self.parameters, self.iteration, self.name)
        mean = yield from self.reception.average(own, self.iteration)
        if self._rules.notify_ack:
            for source in self._neighbours.sources:
                yield Send(source, Ack(self.iteration))
        change = yield from self.finished(step, self.iteration)
        self.parameters = mean + change

    def _advance(self) -> Steps[None]:
        now = self.iteration
        jump = 1
        if self.credits:
            credits = self.credits
            yield Until(lambda: credits.least >= 1, "a token from each out-neighbour")
            jump = self._jump(credits)
            credits.take(jump)
        yield from self._enter(now + jump)
        if jump > 1:
            yield from self._renew(now)
        self.reception.begin(self.iteration)

    def _jump(self, credits: Credits) -> int:
        if not self._rules.skipping:
            return 1
        jump = min(credits.jump(self._rules.max_jump, self._rules.quantile), self._iterations - self.iteration)
        reach = self.reception.reach()
        return jump if reach is None else min(jump, reach - self.iteration)

    def _renew(self, left: int) -> Steps[None]:
        """Having leapt from iteration `left`: tells who waits for updates from between, and averages the newest."""
        for target in self._neighbours.targets:
            yield Send(target, Skipped(left + 1, self.iteration - 1))
        before = self.iteration - 1
        self.reception.begin(before)
        own = Entry(self.parameters, left + 1, self.name)
        self.parameters = yield from self.reception.average(own, before)
