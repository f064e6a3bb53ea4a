"""A member of a staggered group: local steps, a round inside its group, and periodic exchanges with other groups.

    members --Local--> owner --GroupMove--> roots           in rounds in which the group exchanges
       ^                 | ^--Merged---'
       `-----Agreed------'                              in every round

Inside a group each member sends its part of each shard to the shard's owner, which adds the parts and sends the sum
back: a reduce-scatter and an all-gather in two hops; with one owner, a star. An owner exchanges its shard with the
roots whose slices of the global model overlap it. A member may be all of these at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from testbed.schemes.staggered.rules import StaggeredRules, cut
from testbed.schemes.staggered.shards import Agreed, GlobalSlice, GroupMove, Local, Merged, OwnedShard
from testbed.sync.gossip.effects import Advance, LocalCompute, Send, Step, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message

if TYPE_CHECKING:
    from torch import Tensor


class StaggeredMember(TrainingMember):
    """The member `name` under `rules`. All members start from the same `parameters`."""

    def __init__(self, name: str, rules: StaggeredRules, parameters: Tensor) -> None:
        super().__init__(name, parameters)
        self._rules = rules
        self._team = rules.teams[rules.team_of(name)]
        self._share = rules.share(name)
        self._shards = dict(zip(self._team.owners, cut(len(parameters), len(self._team.owners)), strict=True))
        self._slices = dict(zip(rules.roots, cut(len(parameters), len(rules.roots)), strict=True))
        self._agreed: dict[int, dict[str, Tensor]] = {}
        self._local: dict[int, dict[str, Tensor]] = {}
        owned, held = self._shards.get(name), self._slices.get(name)
        self._owned = OwnedShard(rules, owned[0], parameters[slice(*owned)]) if owned else None
        self._copy = GlobalSlice(rules, held[0], parameters[slice(*held)]) if held else None

    @property
    def patience(self) -> int:
        """The most rounds that this member waits for another group: the longest period of any group."""
        return max(team.period for team in self._rules.teams)

    def program(self) -> Steps[None]:
        """Yield the rounds: local steps, the exchange inside the group, and the group's exchange when it is due."""
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
                yield from self._reduce(number, self._owned)
            yield from self._take(number)
        yield Advance(self._rules.rounds)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Keep a change or shard from another member of the group; merge, or set, elements of an exchange."""
        match message:
            case Local(number, values) if _fits(values, self._shards.get(self.name)):
                self._local.setdefault(number, {})[sender] = values
            case Agreed(number, values) if _fits(values, self._shards.get(sender)):
                self._agreed.setdefault(number, {})[sender] = values
            case GroupMove() if self._copy is not None:
                return self._copy.merge(sender, message)
            case Merged(number, start, values) if self._owned and self._owned.awaits:
                self._owned.put(number, start, values)
            case _:
                raise self.unexpected(sender, message)
        return ()

    def _reduce(self, number: int, owned: OwnedShard) -> Steps[None]:
        """Add the changes of a round, exchange the shard where that is due, and send it to the group."""
        everybody = set(self._team.members)
        yield Until(lambda: self._local.get(number, {}).keys() >= everybody, f"its group's changes of round {number}")
        changes = self._local.pop(number)
        owned.add(changes[member] for member in self._team.members)
        if self._team.next_exchange(number - 1, self._rules.rounds) == number:
            yield from self._exchange(number, owned)
        for member in self._team.members:
            yield Send(member, Agreed(number, owned.values))

    def _exchange(self, number: int, owned: OwnedShard) -> Steps[None]:
        moved = owned.move(number)
        for root, (first, last) in self._slices.items():
            begin, end = max(owned.start, first), min(owned.stop, last)
            if begin < end:
                yield Send(root, GroupMove(number, begin, moved[begin - owned.start : end - owned.start]))
        yield Until(lambda: not owned.awaits, f"the exchange of round {number}")

    def _take(self, number: int) -> Steps[None]:
        """Set the parameters to the group's, shard by shard."""
        owners = set(self._shards)
        yield Until(lambda: self._agreed.get(number, {}).keys() >= owners, f"its group's result of round {number}")
        shards = self._agreed.pop(number)
        parameters = self.parameters.clone()
        for owner, shard in self._shards.items():
            parameters[slice(*shard)] = shards[owner]
        self.parameters = parameters


def _fits(values: Tensor, shard: tuple[int, int] | None) -> bool:
    return shard is not None and len(values) == shard[1] - shard[0]
