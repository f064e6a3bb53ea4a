"""Who forms a group, how much everybody does in a round, and what a group's move counts when it is merged.

With unequal work, plain averages solve another problem than the members have: who takes more steps, or exchanges more
often, pulls the model towards its own data. FedNova (Wang et al. 2020, arXiv 2007.07481) divides what each changed by
the work behind it and gives the mean work back. In a group and among all groups that is

    Δ_k = ā_k · Σ_i p_i Δ_i / a_i          ā_k = Σ_i p_i a_i        over the group's members, p adding up to 1
    x ← x + α_k · (τ̄ā / τ_kā_k) · Δ_k      α_k = α · (N_k/N) · (τ_k/τ̄) · (1 + s_k)^−decay

where a_i is the length of i's local steps under a constant gradient (`accumulated`; h_i for plain SGD), Δ_k the sum of
τ_k rounds' moves, s_k by how many rounds the group is behind. Without the period's factor in α_k, two equal groups
with periods 1 and 4 settle at 0.20 instead of 0.5. What is merged is the group's move, not its copy [ours]: a copy
would take back α_k of what others have merged since, which favours those who exchange rarely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from testbed.sync.outer import Average, Outer


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
class HybridRules:
    """All that the members agree on. Each part can be switched off alone.

    rounds         how many; all groups exchange in the last one, so that all end with the same parameters
    steps          local steps of each member in a round
    samples        how much each member's data count
    alpha, decay   the weight of a merge, and what lateness takes from it
    staleness      None: an exchange ends when all that are due up to its round are merged (synchronous). Else the
                   answer to an exchange of round r waits only for those due before r - staleness
    normalise      divide by the work done, as FedNova; else plain averages of what was changed
    prox           how far each local step returns towards where the round began: ημ in FedProx (Li et al. 2020)
    momentum       that of the members' optimizer, begun anew each round; it makes their steps longer
    outer          what a root makes of a merge
    """

    teams: tuple[Team, ...]
    rounds: int
    steps: Mapping[str, int]
    samples: Mapping[str, float]
    alpha: float = 1.0
    decay: float = 0.5
    staleness: int | None = None
    normalise: bool = True
    prox: float = 0.0
    momentum: float = 0.0
    outer: Outer = field(default_factory=Average)

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

    @cached_property
    def work(self) -> dict[str, float]:
        """a_i: how long each member's local steps are under a constant gradient of 1."""
        return {member: accumulated(count, self.momentum, self.prox) for member, count in self.steps.items()}

    def team_of(self, member: str) -> int:
        """The number of a member's group."""
        return next(k for k, team in enumerate(self.teams) if member in team.members)

    def share(self, member: str) -> float:
        """What a member's change counts in its group's move: p_i·ā_k/a_i, or p_i without normalising."""
        team = self.teams[self.team_of(member)]
        own = self.samples[member] / sum(self.samples[m] for m in team.members)
        return own * self._mean_work(team.members) / self.work[member] if self.normalise else own

    def weight(self, number: int, late: int) -> float:
        """What a group's move counts in the global model when it is `late` rounds behind."""
        team = self.teams[number]
        alpha: float = self.alpha * self._part(team) * (1 + late) ** -self.decay
        if not self.normalise:
            return alpha
        everybody = tuple(self.samples)
        whole = self._mean_work(everybody) * self._mean_period
        return alpha * team.period / self._mean_period * whole / (team.period * self._mean_work(team.members))

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The holders of the global model, each of an equal slice: every group's first owner."""
        return tuple(team.owners[0] for team in self.teams)

    @property
    def _mean_period(self) -> float:
        return sum(self._part(team) * team.period for team in self.teams)

    def _part(self, team: Team) -> float:
        return sum(self.samples[m] for m in team.members) / sum(self.samples.values())

    def _mean_work(self, members: tuple[str, ...]) -> float:
        total = sum(self.samples[m] for m in members)
        return sum(self.samples[m] * self.work[m] for m in members) / total


def accumulated(steps: int, momentum: float = 0.0, prox: float = 0.0) -> float:
    """How far `steps` local steps of size 1 go under a constant gradient (FedNova's norm of a, section 4)."""
    distance = speed = 0.0
    for _ in range(steps):
        speed = momentum * speed + 1
        distance = (distance + speed) * (1 - prox)
    return distance


def cut(elements: int, parts: int) -> list[tuple[int, int]]:
    """The elements [start, stop) of each of `parts` holders, nearly equal, in their order."""
    ends = [part * elements // parts for part in range(parts + 1)]
    return list(pairwise(ends))
