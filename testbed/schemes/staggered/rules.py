"""The rules of staggered groups: their members, the work of each in a round, and the weight of a group's move.

With unequal work, plain averages solve another problem than the members have: a member that takes more steps, or a
group that exchanges more often, pulls the model towards its own data. FedNova (Wang et al. 2020, arXiv 2007.07481)
divides each member's change by the work behind it and multiplies by the mean work. In a group and among all groups that
is

    Δ_k = ā · Σ_i p_i Δ_i / a_i       over the group's members, p adding up to 1, in each round
    x ← x + (N_k/N) · Σ Δ_k           over the rounds since the group's last exchange

where a_i is the length of i's local steps under a constant gradient (`accumulated`; h_i for plain SGD). ā is the plain
mean of all members' a_i, as in the scheme hybrid. Any ā that all groups share leads to the same point; FedNova's
Σ_i p_i a_i is small where slow members have the most data, and an ā for each group would let the fast groups go to
their own optimum between exchanges (the small GPT then took twice the time to a loss of 2.7). A group's change is
merged, not its parameters [ours]: parameters would undo a part of what other groups have merged since the last
exchange. If the change were divided by its τ_k rounds, two equal groups with periods 1 and 4 would converge to 0.20
instead of 0.5. Weights do not fall with lateness, as FedAsync's do: groups that are always a little later than others
would count less for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from testbed.schemes.hybrid import accumulated
from testbed.sync.codecs import PLAIN, Codec, by_name
from testbed.sync.strategies.periodic import Average, Nesterov, Outer


@dataclass(frozen=True, slots=True)
class Team:
    """A group of members. It exchanges with other groups in rounds r with r mod `period` = `phase`, and in the last."""

    members: tuple[str, ...]
    #: The members that each hold a shard of the group's parameters, in the order of the shards: m owners hold 1/m each.
    owners: tuple[str, ...]
    period: int = 1
    phase: int = 0

    def __post_init__(self) -> None:
        if not self.owners or not set(self.owners) <= set(self.members):
            raise ValueError(
                f"a staggered group's owners {list(self.owners)} must be some of its members {list(self.members)}"
            )
        if self.period < 1 or not 0 <= self.phase < self.period:
            raise ValueError(f"period {self.period}, phase {self.phase}: at least 1, and from 0 to the period - 1")

    def next_exchange(self, after: int, last: int) -> int | None:
        """Return the first round after `after` in which the group exchanges; None beyond the `last` round."""
        if after >= last:
            return None
        return min(after + 1 + (self.phase - after - 1) % self.period, last)


@dataclass(frozen=True)
class StaggeredRules:
    """The rules on which all members agree. Each part can be switched off alone."""

    teams: tuple[Team, ...]
    #: All groups exchange in the last round, so that all members end with the same parameters.
    rounds: int
    #: Local steps of each member in a round.
    steps: Mapping[str, int]
    #: The weight of each member's data.
    samples: Mapping[str, float]
    #: None: an exchange ends when all exchanges due up to its round are merged (synchronous). Otherwise the answer to
    #: an exchange of round r waits only for those due before r - staleness.
    staleness: int | None = None
    #: Divide changes by the work behind them, as FedNova; otherwise take plain averages.
    normalise: bool = True
    #: The fraction by which each local step returns to the parameters at the round's begin: ημ in FedProx (Li et al.
    #: 2020).
    prox: float = 0.0
    #: The outer optimizer by which a root merges.
    outer: Outer = field(default_factory=Average)
    #: The codec of groups' moves and of the global model between groups; it rounds the same everywhere.
    codec: Codec = PLAIN

    def __post_init__(self) -> None:
        named = [member for team in self.teams for member in team.members]
        if len(set(named)) != len(named) or not named:
            raise ValueError("the teams must have a member, and each member must be in exactly one of the teams")
        for what, values in (("steps", self.steps), ("samples", self.samples)):
            if set(values) != set(named) or not all(value > 0 for value in values.values()):
                raise ValueError(f"{what} must have a value above 0 for each of {sorted(named)}, and for no other")
        if self.rounds < 1 or (self.staleness or 0) < 0:
            raise ValueError("rounds must be at least 1, and staleness not negative")
        if not 0 <= self.prox < 1:
            raise ValueError(f"prox {self.prox} must be at least 0 and below 1")

    @classmethod
    def from_json(cls, value: Mapping[str, Any], rounds: int, samples: Mapping[str, float]) -> StaggeredRules:
        """Read the rules from plain values. Raises ValueError where a value is missing or wrong."""
        try:
            teams = [
                Team(tuple(team["members"]), tuple(team["owners"]), team["period"], team["phase"])
                for team in value["teams"]
            ]
            return cls(
                teams=tuple(teams),
                rounds=rounds,
                steps=value["steps"],
                samples=samples,
                staleness=value["staleness"],
                normalise=value["normalise"],
                prox=value["prox"],
                outer=Nesterov(**value["outer"]),
                codec=by_name(value["codec"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the rules of staggered groups lack a value, or have a wrong one: {error!r}") from error

    @cached_property
    def work(self) -> dict[str, float]:
        """The length a_i of each member's local steps under a constant gradient of 1."""
        return {member: accumulated(count, self.prox) for member, count in self.steps.items()}

    def team_of(self, member: str) -> int:
        """Return the number of a member's group."""
        return next(k for k, team in enumerate(self.teams) if member in team.members)

    def share(self, member: str) -> float:
        """Return the weight of a member's change in its group's move: p_i·ā/a_i, or p_i without normalising."""
        team = self.teams[self.team_of(member)]
        own = self.samples[member] / sum(self.samples[m] for m in team.members)
        return own * self._mean_work / self.work[member] if self.normalise else own

    def weight(self, number: int) -> float:
        """Return the weight of a group's move in the global model: its part of all samples."""
        return sum(self.samples[m] for m in self.teams[number].members) / sum(self.samples.values())

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The holders of equal slices of the global model: every group's first owner."""
        return tuple(team.owners[0] for team in self.teams)

    @property
    def _mean_work(self) -> float:
        return sum(self.work.values()) / len(self.work)


def cut(elements: int, parts: int) -> list[tuple[int, int]]:
    """Return the elements [start, stop) of each of `parts` holders, nearly equal, in their order."""
    ends = [part * elements // parts for part in range(parts + 1)]
    return list(pairwise(ends))
