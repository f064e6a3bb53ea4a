"""Which members form a group, how much each does in a round, and what a group's move counts when it is merged.

With unequal work, plain averages solve another problem than the members have: one that takes more steps, or exchanges
more often, pulls the model towards its own data. FedNova (Wang et al. 2020, arXiv 2007.07481) divides what each changed
by the work behind it and gives the mean work back. In a group and among all groups that is

    Δ_k = ā · Σ_i p_i Δ_i / a_i       over the group's members, p adding up to 1, in each round
    x ← x + α_k · Σ Δ_k               α_k = α · (N_k/N) · (1 + s_k)^−decay, over the rounds since its last exchange

where a_i is the length of i's local steps under a constant gradient (`accumulated`; h_i for plain SGD), s_k by how many
rounds the group is behind. ā is the plain mean of all members' a_i, as LocalSgd has it: any number leads to the same
point, FedNova's Σ_i p_i a_i is small where the slow have the most data, and one for each group would have the fast
groups run off to their own optimum between exchanges (the small GPT then took twice the time to a loss of 2.7). What is
merged is a group's move, not its copy [ours]: a copy would take back α_k of what others have merged since, and were the
move divided by its τ_k rounds, two equal groups with periods 1 and 4 would settle at 0.20 instead of 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from torch import Tensor

from testbed.schemes.hybrid import accumulated
from testbed.sync.codecs import PLAIN, Codec, by_name
from testbed.sync.outer import Average, Nesterov, Outer


@dataclass(frozen=True, slots=True)
class Team:
    """A group. Its `owners` each hold a shard of the model, in their order: one leader the whole, m members 1/m.

    It exchanges with the others in the rounds r with r mod `period` = `phase`, and in the last one.
    """

    members: tuple[str, ...]
    owners: tuple[str, ...]
    period: int = 1
    phase: int = 0

    def __post_init__(self) -> None:
        if not self.owners or not set(self.owners) <= set(self.members):
            raise ValueError(f"owners {list(self.owners)} must be some of the members {list(self.members)}")
        if self.period < 1 or not 0 <= self.phase < self.period:
            raise ValueError(f"period {self.period}, phase {self.phase}: at least 1, and from 0 to the period - 1")

    def next_exchange(self, after: int, last: int) -> int | None:
        """The first round after `after` in which the group exchanges; None beyond the `last` round."""
        if after >= last:
            return None
        return min(after + 1 + (self.phase - after - 1) % self.period, last)


@dataclass(frozen=True)
class StaggeredRules:
    """All that the members agree on. Each part can be switched off alone.

    rounds         how many; all groups exchange in the last one, so that all end with the same parameters
    steps          local steps of each member in a round
    samples        how much each member's data count
    alpha, decay   the weight of a merge, and what lateness takes from it: for good, so at more than 0 groups that are
                   always a little later than others count less, as in FedAsync
    staleness      None: an exchange ends when all that are due up to its round are merged (synchronous). Else the
                   answer to an exchange of round r waits only for those due before r - staleness
    normalise      divide by the work done, as FedNova; else plain averages of what was changed
    prox           how far each local step returns towards where the round began: ημ in FedProx (Li et al. 2020)
    momentum       that of the members' optimizer, begun anew each round; it makes their steps longer
    outer          what a root makes of a merge
    codec          what groups' moves and the global model go through between groups; it rounds the same everywhere
    """

    teams: tuple[Team, ...]
    rounds: int
    steps: Mapping[str, int]
    samples: Mapping[str, float]
    alpha: float = 1.0
    decay: float = 0.0
    staleness: int | None = None
    normalise: bool = True
    prox: float = 0.0
    momentum: float = 0.0
    outer: Outer = field(default_factory=Average)
    codec: Codec = PLAIN

    def __post_init__(self) -> None:
        named = [member for team in self.teams for member in team.members]
        if len(set(named)) != len(named) or not named:
            raise ValueError("the teams must hold every member, each in one of them")
        for what, values in (("steps", self.steps), ("samples", self.samples)):
            if set(values) != set(named) or not all(value > 0 for value in values.values()):
                raise ValueError(f"{what} must be those of {sorted(named)}, all above 0")
        if self.rounds < 1 or not self.alpha > 0 or self.decay < 0 or (self.staleness or 0) < 0:
            raise ValueError("rounds must be at least 1, alpha above 0, decay and staleness not negative")
        if not 0 <= self.prox < 1 or not 0 <= self.momentum < 1:
            raise ValueError(f"prox {self.prox} and momentum {self.momentum} must be at least 0 and below 1")

    @classmethod
    def from_json(cls, value: Mapping[str, Any], rounds: int, samples: Mapping[str, float]) -> StaggeredRules:
        """The rules that a mapping says for members with so many samples; ValueError when it says none."""
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
            raise ValueError(f"no rules of hybrid synchronization: {error!r}") from error

    @cached_property
    def work(self) -> dict[str, float]:
        """a_i: how long each member's local steps are under a constant gradient of 1."""
        return {member: accumulated(count, self.momentum, self.prox) for member, count in self.steps.items()}

    def team_of(self, member: str) -> int:
        """The number of a member's group."""
        return next(k for k, team in enumerate(self.teams) if member in team.members)

    def share(self, member: str) -> float:
        """What a member's change counts in its group's move: p_i·ā/a_i, or p_i without normalising."""
        team = self.teams[self.team_of(member)]
        own = self.samples[member] / sum(self.samples[m] for m in team.members)
        return own * self._mean_work / self.work[member] if self.normalise else own

    def weight(self, number: int, late: int) -> float:
        """What a group's move counts in the global model when it is `late` rounds behind: α_k."""
        team = self.teams[number]
        part = sum(self.samples[m] for m in team.members) / sum(self.samples.values())
        weight: float = self.alpha * part * (1 + late) ** -self.decay
        return weight

    def rounded(self, values: Tensor) -> Tensor:
        """A copy of the values, as they come out at the other end of the codec; twice is as once."""
        if self.codec is PLAIN:
            return values.clone()
        return self.codec.decode(self.codec.encode(values), len(values))

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The holders of the global model, each of an equal slice: every group's first owner."""
        return tuple(team.owners[0] for team in self.teams)

    @property
    def _mean_work(self) -> float:
        return sum(self.work.values()) / len(self.work)


def cut(elements: int, parts: int) -> list[tuple[int, int]]:
    """The elements [start, stop) of each of `parts` holders, nearly equal, in their order."""
    ends = [part * elements // parts for part in range(parts + 1)]
    return list(pairwise(ends))
