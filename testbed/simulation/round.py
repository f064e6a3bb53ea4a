"""A round as simulated: when members had its mean, and what went over which path when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from testbed.plan import Plan
from testbed.planning import Pair
from testbed.simulation.underlay import UnderlayState


class Transfer(NamedTuple):
    """A chunk that was sent from `began_s` to `ended_s`, of so many bytes of payload, the first of which came in at
    `first_s`, the last at `came_s`. All seconds after training began."""

    began_s: float
    ended_s: float
    first_s: float
    came_s: float
    bytes: float


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
    network: UnderlayState

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

    @abstractmethod
    def round(self, plan: Plan, began_s: Mapping[str, float]) -> SimulatedRound:
        """The round that each member begins at its moment. RunFailed when it can't come to its end."""
