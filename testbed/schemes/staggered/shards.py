"""The parts of the model that members hold: a shard of their group's parameters, a slice of the global model.

Messages carry elements of these parts; their `start` is the index of the first element in the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from testbed.schemes.staggered.rules import StaggeredRules
from testbed.sync.codecs import rounded
from testbed.sync.gossip.effects import Send
from testbed.sync.gossip.message import CodedElements, Elements, Message, message

if TYPE_CHECKING:
    from torch import Tensor


@message(20)
class Local(Message):
    """To the owner of a shard: the sender's change of the shard in a round, times the sender's weight in its group."""

    round: int
    values: Elements


@message(21)
class Agreed(Message):
    """From the owner of a shard, to its group: the group's parameters in the shard at the end of a round."""

    round: int
    values: Elements


@message(22)
class GroupMove(Message):
    """To the root that holds these elements: their change by the sender's group since its last exchange."""

    round: int
    start: int
    values: CodedElements


@message(23)
class Merged(Message):
    """From a root, in answer to a GroupMove: these elements of the global model after the merge."""

    round: int
    start: int
    values: CodedElements


class OwnedShard:
    """The elements [start, start + len(values)) of a group's parameters, at the member that owns them.

    It adds up the changes of rounds, and applies the answers to exchanges. `values` are the parameters after the last
    round.
    """

    def __init__(self, rules: StaggeredRules, start: int, values: Tensor) -> None:
        self.start = start
        self.values = values.clone()
        self._rules = rules
        self._anchor = self.values  # those after the last exchange
        self._residual = values.new_zeros(values.shape)  # what the codec left out of moves so far
        self._missing, self._round = 0, 0  # elements still to come back, and the round of their exchange

    @property
    def stop(self) -> int:
        """The index at which the next shard begins."""
        return self.start + len(self.values)

    @property
    def awaits(self) -> bool:
        """True if elements are still to come back from an exchange."""
        return self._missing > 0

    def add(self, changes: Iterable[Tensor]) -> None:
        """Add a round's changes in a fixed order, so that the bits do not depend on which change came first."""
        first, *others = changes
        self.values = self.values + sum(others, first)

    def move(self, number: int) -> Tensor:
        """Return the group's change since its last exchange, as the codec decodes it.

        The shard then awaits what comes back from the exchange of round `number`.
        """
        exact = self.values - self._anchor + self._residual
        moved = rounded(self._rules.codec, exact)
        self._residual = exact - moved
        self.values = moved.clone()  # replaced by what comes back
        self._missing, self._round = len(self.values), number
        return moved

    def put(self, number: int, start: int, values: Tensor) -> None:
        """Set elements that come back from the exchange. Raises ValueError where they are not awaited."""
        if number != self._round or not self.start <= start <= self.stop - len(values):
            raise ValueError(
                f"a root sent {len(values)} merged elements, from {start} on, in round {number}, and this member's "
                "shard does not await them"
            )
        first = start - self.start
        self.values[first : first + len(values)] = values
        self._missing -= len(values)
        if not self._missing:
            self._anchor = self.values


class GlobalSlice:
    """The elements [start, start + len(values)) of the global model, at their root.

    It merges the moves of groups, and lets no group get too far ahead. The owners of a group each send the part of
    their shard that lies here. An exchange of round r is answered when every group has made its exchanges before
    r − staleness (synchronous: up to r); in the last round, when all are made.
    """

    def __init__(self, rules: StaggeredRules, start: int, values: Tensor) -> None:
        self.values = values.clone()
        self._rules = rules
        self._start = start
        self._momentum = values.new_zeros(values.shape)
        self._awaiting: list[tuple[str, GroupMove]] = []  # parts of moves without an answer yet, with their senders
        self._came: dict[tuple[int, int], int] = {}  # (group, round) → elements merged
        self._done = [0] * len(rules.teams)  # the round of each group's last complete exchange

    def merge(self, sender: str, message: GroupMove) -> Iterable[Send]:
        """Merge a part of a group's move, and return the answers that are due now.

        Raises:
            ValueError: The part does not lie in this slice.
        """
        group = self._rules.team_of(sender)
        if not self._start <= message.start <= self._start + len(self.values) - len(message.values):
            raise ValueError(
                f"{sender} moved {len(message.values)} elements from {message.start} on, which are not of this slice"
            )
        here = slice(message.start - self._start, message.start - self._start + len(message.values))
        change = message.values * -self._rules.weight(group)
        self._rules.outer.step(self.values[here], change, self._momentum[here])
        self._awaiting.append((sender, message))
        came = self._came.get((group, message.round), 0) + len(message.values)
        self._came[group, message.round] = came
        if came == len(self.values):
            del self._came[group, message.round]
            self._done[group] = message.round
        return self._answers()

    def _answers(self) -> list[Send]:
        first = min(self._next_round(group) for group in range(len(self._done)))
        ready = [its for its in self._awaiting if self._may_go(its[1].round, first)]
        self._awaiting = [its for its in self._awaiting if not self._may_go(its[1].round, first)]
        return [Send(sender, self._answer(message)) for sender, message in ready]

    def _next_round(self, group: int) -> float:
        """Return the round of a group's next exchange; infinite after the last."""
        due = self._rules.teams[group].next_exchange(self._done[group], self._rules.rounds)
        return float("inf") if due is None else due

    def _may_go(self, number: int, next_round: float) -> bool:
        if self._rules.staleness is None or number == self._rules.rounds:
            return next_round > number
        return next_round >= number - self._rules.staleness

    def _answer(self, message: GroupMove) -> Merged:
        first = message.start - self._start
        values = self.values[first : first + len(message.values)]
        return Merged(message.round, message.start, rounded(self._rules.codec, values))
