"""A round as simulated: when members had its mean, and what went over which path when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from testbed.plan import Group, Plan
from testbed.planning import Pair
from testbed.simulation.network import NetworkState
from testbed.simulation.payload import Payload


class Transfer(NamedTuple):
    """A chunk that was sent from `began_s` to `ended_s`, of so many bytes of payload, the first of which came in at
    `first_s`, the last at `came_s`. All seconds after training began. Its connection paced it at so many bytes a second
    as it began; 0 is no pace."""

    began_s: float
    ended_s: float
    first_s: float
    came_s: float
    bytes: float
    pace: float = 0.0


#: Fragments and groups take turns: so many of them are known at a time.
RECENT = 32

#: By peer, in order.
Transfers = Mapping[str, Sequence[Transfer]]


@dataclass(frozen=True)
class SimulatedRound:
    """What became of a round: when each member had the mean of everything, and the transfers of each edge, in order.

    `network` is as it was when the round began.
    """

    began_s: Mapping[str, float]
    finished_s: Mapping[str, float]
    transfers: Mapping[Pair, Sequence[Transfer]]
    network: NetworkState

    @cached_property
    def sent(self) -> dict[str, Transfers]:
        """What each member sent, by its receiver."""
        return self._by_member(0)

    @cached_property
    def came(self) -> dict[str, Transfers]:
        """What each member got, by its sender."""
        return self._by_member(1)

    def _by_member(self, end: int) -> dict[str, Transfers]:
        found: dict[str, dict[str, Sequence[Transfer]]] = {member: {} for member in self.began_s}
        for pair, its in self.transfers.items():
            if its:
                found[pair[end]][pair[1 - end]] = its
        return dict(found)


class RoundModel(ABC):
    """Simulates rounds, one after the other. `name` stands in the run's manifest."""

    name: str
    _grouped: tuple[Plan, list[Plan]] | None = None

    def round(self, plan: Plan, number: int, began_s: Mapping[str, float], payload: Payload) -> SimulatedRound:
        """The round of a number that each member begins at its moment. RunFailed when it can't come to its end.

        Groups that reduce among themselves do not meet each other on links.
        """
        if plan.among_all(number):
            return self.reduced(plan, began_s, payload)
        if self._grouped is None or self._grouped[0] is not plan:
            self._grouped = plan, [among(plan, group) for group in plan.groups]
        parts = [
            self.reduced(group, {name: began_s[name] for name in group.members}, payload) for group in self._grouped[1]
        ]
        first = min(parts, key=lambda part: part.network.at_s)
        return SimulatedRound(
            began_s,
            {name: at_s for part in parts for name, at_s in part.finished_s.items()},
            {pair: its for part in parts for pair, its in part.transfers.items()},
            first.network,
        )

    @abstractmethod
    def reduced(self, plan: Plan, began_s: Mapping[str, float], payload: Payload) -> SimulatedRound:
        """A round among all members of a plan."""


def among(plan: Plan, group: Group) -> Plan:
    """The plan of a group's own rounds."""
    return Plan(plan.epoch, group.members, group.trees, plan.chunk_bytes, plan.policy)


T = TypeVar("T")


class Recent(Generic[T]):
    """What was made of the last few plans and sizes, which rounds take in turn."""

    def __init__(self, make: Callable[[Plan, int], T]) -> None:
        self._make = make
        self._made: deque[tuple[Plan, int, T]] = deque(maxlen=RECENT)

    def of(self, plan: Plan, size: int) -> T:
        """What is made of a plan and a size."""
        for its, its_size, made in self._made:
            if its_size == size and its is plan:
                return made
        self._made.append((plan, size, self._make(plan, size)))
        return self._made[-1][2]
