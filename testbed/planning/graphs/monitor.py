"""The online monitor of iteration gaps: says when a mode's bound is broken, while a run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from testbed.planning.view import Pair


@dataclass(frozen=True, slots=True)
class Violation:
    """`ahead` got `gap` iterations ahead of `behind`, where the mode allows `bound`."""

    ahead: str
    behind: str
    gap: int
    bound: float

    def __str__(self) -> str:
        return f"{self.ahead} is {self.gap} iterations ahead of {self.behind}, where the bound is {self.bound:g}"


class GapMonitor:
    """Follows every member's iteration and every pair's gap.

    Fed in the order of time: an advance that is told late makes the others look further ahead than they were.
    Before its first advance a member is in iteration 0.
    """

    def __init__(self, members: Iterable[str], bounds: Mapping[Pair, float]) -> None:
        self._iteration = dict.fromkeys(members, 0)
        self._bounds = bounds
        self._widest: dict[Pair, int] = dict.fromkeys(bounds, 0)
        self._violations: list[Violation] = []

    def advance(self, member: str, iteration: int) -> list[Violation]:
        """`member` has entered `iteration`; the bounds that this breaks."""
        self._iteration[member] = iteration
        broken = []
        for other, behind in self._iteration.items():
            if other == member:
                continue
            pair, gap = (member, other), iteration - behind
            if gap > self._widest[pair]:
                self._widest[pair] = gap
            if gap > self._bounds[pair]:
                broken.append(Violation(member, other, gap, self._bounds[pair]))
        self._violations += broken
        return broken

    def meet(self, comer: str, iteration: int) -> None:
        """A member that had died comes again, and is in `iteration`."""
        self._iteration[comer] = iteration

    def forget(self, gone: str, bounds: Mapping[Pair, float]) -> None:
        """A member has died: it is followed no more, and the others go by `bounds` from now on."""
        del self._iteration[gone]
        self._bounds = {**self._bounds, **bounds}

    @property
    def iterations(self) -> Mapping[str, int]:
        """Where each member is."""
        return self._iteration

    @property
    def widest(self) -> Mapping[Pair, int]:
        """The widest gap so far of each pair (ahead, behind); 0 where the first was never ahead."""
        return self._widest

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All that were broken so far."""
        return tuple(self._violations)
