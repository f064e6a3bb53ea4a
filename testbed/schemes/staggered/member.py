"""A member of the hybrid scheme: local steps, a tight round inside its group, now and then a loose one outside it.

    members --Local--> owner --GroupMove--> roots           in rounds in which the group exchanges
       ^                 | ^--Merged---'
       `-----Agreed------'                              in every round

Inside a group everybody sends its part of each shard to the shard's owner, which adds up and sends the result back: a
reduce-scatter and an all-gather in two hops; with one owner, a star. The owners exchange their shards with the roots of
the global model, each with those whose slices overlap its own. A member may be all of these at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from testbed.schemes.staggered.copy import GlobalSlice
from testbed.schemes.staggered.messages import Agreed, GroupMove, Local, Merged
from testbed.schemes.staggered.rules import HybridRules, cut
from testbed.sync.gossip.effects import Advance, LocalCompute, Send, Step, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message


class HybridMember(TrainingMember):
    """Member `name` under `rules`, from `parameters`, which are everybody's at the start."""

    def __init__(self, name: str, rules: HybridRules, parameters: Tensor) -> None:
        super().__init__(name, parameters)
        self._rules = rules
        self._team = rules.teams[rules.team_of(name)]
        self._share = rules.share(name)
        self._shards = dict(zip(self._team.owners, cut(len(parameters), len(self._team.owners)), strict=True))
        self._slices = dict(zip(rules.roots, cut(len(parameters), len(rules.roots)), strict=True))
        self._agreed: dict[int, dict[str, Tensor]] = {}
        self._local: dict[int, dict[str, Tensor]] = {}
        self._owned = self._shards.get(name)
        self._base = parameters[slice(*self._owned)].clone() if self._owned else None
        self._at = self._base  # where the group stands, of the shard that this member owns
        self._owed = torch.zeros_like(self._base) if self._base is not None else None  # what the codec left out
        self._missing, self._exchanged = 0, 0  # elements that are to come back, and the round in which they went
        held = self._slices.get(name)
        self._copy = GlobalSlice(rules, held[0], parameters[slice(*held)]) if held else None

    @property
    def patience(self) -> int:
        """A group that is ahead waits for one that exchanges as rarely as any: all the rounds before that."""
        return max(team.period for team in self._rules.teams)

    def program(self) -> Steps[None]:
        done = 0
        for number in range(1, self._rules.rounds + 1):
            yield Advance(number - 1)
            local = self.parameters
            for _ in range(self._rules.steps[self.name]):
                step: Step = yield LocalCompute(local, done)
                yield from self.finished(step, done)
                local = local + step.change
                if self._rules.prox:
                    local = local.lerp(self.parameters, self._rules.prox)
                done += 1
            change = (local - self.parameters) * self._share
            for owner, shard in self._shards.items():
                yield Send(owner, Local(number, change[slice(*shard)]))
            if self._owned:
                yield from self._own(number)
            yield from self._take(number)
        yield Advance(self._rules.rounds)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case Local(number, values) if _fits(values, self._owned):
                self._local.setdefault(number, {})[sender] = values
            case Agreed(number, values) if _fits(values, self._shards.get(sender)):
                self._agreed.setdefault(number, {})[sender] = values
            case GroupMove() if self._copy is not None:
                return self._copy.merge(sender, message)
            case Merged(number, start, values) if self._missing:
                self._put(number, start, values)
            case _:
                raise self.unexpected(sender, message)
        return ()

    def _own(self, number: int) -> Steps[None]:
        """Add up a round's shard, exchange it where that is due, and send it to the group."""
        everybody = set(self._team.members)
        yield Until(lambda: self._local.get(number, {}).keys() >= everybody, f"its group's changes of round {number}")
        assert self._at is not None and self._base is not None
        moves = self._local.pop(number)
        # In one order, so that all members' bits do not hang on who came first.
        self._at = self._at + sum((moves[m] for m in self._team.members[1:]), moves[self._team.members[0]])
        if self._team.next_exchange(number - 1, self._rules.rounds) == number:
            yield from self._exchange(number, self._at - self._base)
        for member in self._team.members:
            yield Send(member, Agreed(number, self._at))

    def _exchange(self, number: int, moved: Tensor) -> Steps[None]:
        assert self._owned is not None and self._owed is not None
        start, stop = self._owned
        owed = moved + self._owed
        moved = self._rules.rounded(owed)
        self._owed = owed - moved
        self._at = moved.clone()  # filled with what comes back
        self._missing, self._exchanged = stop - start, number
        for root, (first, last) in self._slices.items():
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                yield Send(root, GroupMove(number, begin, moved[begin - start : end - start]))
        yield Until(lambda: not self._missing, f"the exchange of round {number}")
        self._base = self._at

    def _put(self, number: int, start: int, values: Tensor) -> None:
        assert self._at is not None and self._owned is not None
        first, last = self._owned
        if number != self._exchanged or not first <= start <= last - len(values):
            raise ValueError(f"{len(values)} elements from {start} of round {number}, which are not waited for")
        place = start - first
        self._at[place : place + len(values)] = values
        self._missing -= len(values)

    def _take(self, number: int) -> Steps[None]:
        """Take the group's parameters, shard by shard."""
        owners = set(self._shards)
        yield Until(lambda: self._agreed.get(number, {}).keys() >= owners, f"its group's result of round {number}")
        shards = self._agreed.pop(number)
        parameters = self.parameters.clone()
        for owner, shard in self._shards.items():
            parameters[slice(*shard)] = shards[owner]
        self.parameters = parameters


def _fits(values: Tensor, shard: tuple[int, int] | None) -> bool:
    return shard is not None and len(values) == shard[1] - shard[0]
