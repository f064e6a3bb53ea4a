"""A slice of the global model at its root: merges the groups' moves, and lets no group get too far ahead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from testbed.schemes.staggered.messages import GroupMove, Merged
from testbed.schemes.staggered.rules import StaggeredRules
from testbed.sync.gossip.effects import Send


@dataclass(slots=True)
class _Awaiting:
    """An exchange that is to be answered."""

    sender: str
    message: GroupMove


class GlobalSlice:
    """The elements [start, start + len(values)) of the global model.

    A group's owners each send the part of their shard that lies here. An exchange of round r is answered when every
    group has made its exchanges before r − staleness (synchronous: up to r); in the last round, when all are made.
    """

    def __init__(self, rules: StaggeredRules, start: int, values: Tensor) -> None:
        self.values = values.clone()
        self._rules = rules
        self._start = start
        self._momentum = torch.zeros_like(values)
        self._awaiting: list[_Awaiting] = []
        self._came: dict[tuple[int, int], int] = {}  # (group, round) → elements merged
        self._done = [0] * len(rules.teams)  # the round of each group's last exchange that is whole
        self._newest = 0

    def merge(self, sender: str, message: GroupMove) -> Iterable[Send]:
        """Merge a part of a group's move; the answers that may be given now. ValueError when it does not lie here."""
        group = self._rules.team_of(sender)
        if not self._start <= message.start <= self._start + len(self.values) - len(message.values):
            raise ValueError(f"{sender} moved {len(message.values)} elements from {message.start}, which are not here")
        late = max(self._newest - message.round, 0)
        here = slice(message.start - self._start, message.start - self._start + len(message.values))
        change = message.values * -self._rules.weight(group, late)
        self._rules.outer.step(self.values[here], change, self._momentum[here])
        self._awaiting.append(_Awaiting(sender, message))
        came = self._came.get((group, message.round), 0) + len(message.values)
        self._came[group, message.round] = came
        if came == len(self.values):
            del self._came[group, message.round]
            self._done[group] = message.round
            self._newest = max(self._newest, message.round)
        return self._answers()

    def _answers(self) -> list[Send]:
        next_rounds = [self._next_round(group) for group in range(len(self._done))]
        ready = [one for one in self._awaiting if self._may_go(one.message.round, min(next_rounds))]
        self._awaiting = [one for one in self._awaiting if one not in ready]
        return [Send(one.sender, self._answer(one.message)) for one in ready]

    def _next_round(self, group: int) -> float:
        """The round of a group's next exchange."""
        due = self._rules.teams[group].next_exchange(self._done[group], self._rules.rounds)
        return float("inf") if due is None else due

    def _may_go(self, number: int, next_round: float) -> bool:
        if self._rules.staleness is None or number == self._rules.rounds:
            return next_round > number
        return next_round >= number - self._rules.staleness

    def _answer(self, message: GroupMove) -> Merged:
        first = message.start - self._start
        values = self.values[first : first + len(message.values)]
        return Merged(message.round, message.start, self._rules.rounded(values))
