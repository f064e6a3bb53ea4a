"""The search for the grouping of least cost J: seed, insert, then move, swap, merge and split until nothing gains.

For each number of groups: seeds by farthest-first on the round trip, from the member that computes fastest (and from
random ones, where the group is small enough to begin more than once); the others join by falling computing power,
each where J rises least. Groups are kept as rings; a member joins a ring where its bottleneck suffers least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from testbed.planning.policies.cpn.problem import Problem
from testbed.planning.policies.cpn.schedule import Prices, Schedule, least_cost, schedule
from testbed.planning.policies.cpn.terms import Costs, Ring, Spatial, Terms
from testbed.planning.policies.cpn.tour import NOTHING, bettered, inserted

#: Up to so many members every number of groups is tried, and from several first seeds.
FEW = 12
STARTS = 6

#: Numbers of groups that are tried with more members.
COUNTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
#: With more than MANY members, a member looks at the groups with the nearest seeds only, and fewer numbers are tried.
MANY = 64
NEAREST = 3
FEWER_COUNTS = (1, 4, 8, 16, 32)

#: How many groupings the local search may look at in all, 0.2 ms each with two dozen members.
LOOKS = 2_000
#: With MANY members a look takes up to 1 ms.
FEWER_LOOKS = 700


@dataclass(frozen=True, slots=True)
class Grouping:
    """A way to part the members: each group's terms, when they exchange, and the least cost for each number tried."""

    groups: tuple[Terms, ...]
    schedule: Schedule
    tried: dict[int, float] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """J."""
        return self.schedule.cost


def search(
    problem: Problem,
    prices: Prices,
    temporal: bool = True,
    spatial: Spatial = "leader",
    seed: int = 0,
    begin: Sequence[Ring] = (),
) -> Grouping:
    """The best grouping found; the same arguments give the same. With `begin`, only what can be reached from there.

    500 members take 5 s, a dozen 0.7 s, less from a beginning.
    """
    return _GroupingSearch(problem, prices, temporal, spatial, seed).best(begin)


class _GroupingSearch:
    def __init__(self, problem: Problem, prices: Prices, temporal: bool, spatial: Spatial, seed: int) -> None:
        self._problem = problem
        self._prices = prices
        self._temporal = temporal
        self._costs = Costs(problem, spatial)
        self._rings: dict[tuple[Ring, int], Ring] = {}
        self._bettered: dict[Ring, Ring] = {}
        self._known: dict[tuple[Ring, ...], float] = {}
        self._schedules: dict[tuple[Ring, ...], Schedule] = {}
        self._draw = Random(seed)
        self._looks = LOOKS if len(problem) <= MANY else FEWER_LOOKS

    def best(self, begin: Sequence[Ring]) -> Grouping:
        if begin:
            return self._grouping(self._settled([tuple(ring) for ring in begin]))
        tried: dict[int, float] = {}
        found: list[tuple[float, list[Ring]]] = []
        counts = self._counts()
        for left, count in zip(range(len(counts), 0, -1), counts, strict=True):
            share = self._looks // left
            self._looks -= share
            rings, unused = self._for_count(count, share)
            self._looks += unused
            cost = self._schedule(rings).cost
            tried[count] = cost
            found.append((cost, rings))
        _, rings = min(found, key=lambda one: (float(f"{one[0]:.6g}"), len(one[1])))  # of equal ones the fewest groups
        grouping = self._grouping(rings)
        return Grouping(grouping.groups, grouping.schedule, tried)

    def _counts(self) -> list[int]:
        most = len(self._problem)
        if most <= FEW:
            return list(range(1, most + 1))
        return [count for count in (COUNTS if most <= MANY else FEWER_COUNTS) if count <= most]

    def _for_count(self, count: int, looks: int) -> tuple[list[Ring], int]:
        """The best grouping that begins with `count` groups, and the looks that were left."""
        starts = STARTS if len(self._problem) <= FEW else 1
        unused = looks
        found = []
        for start in range(starts):
            allowed = unused // (starts - start)
            rings, left = self._improved(self._insert(self._seeds(count, start)), allowed)
            unused -= allowed - left
            found.append(rings)
        return min(found, key=self._cost), unused

    # -- a first grouping

    def _seeds(self, count: int, start: int) -> list[int]:
        """Farthest-first on the round trip."""
        problem = self._problem
        first = int(problem.step_s.argmin()) if start == 0 else self._draw.randrange(len(problem))
        seeds = [first]
        distance = problem.rtt_s[first].copy()
        while len(seeds) < count:
            distance[seeds] = -1
            seeds.append(int(distance.argmax()))
            distance = np.minimum(distance, problem.rtt_s[seeds[-1]])
        return seeds

    def _insert(self, seeds: Sequence[int]) -> list[Ring]:
        rings: list[Ring] = [(seed,) for seed in seeds]
        taken = set(seeds)
        for member in np.argsort(self._problem.step_s, kind="stable").tolist():
            if member in taken:
                continue
            options = range(len(rings))
            if len(self._problem) > MANY:
                options = np.argsort(self._problem.rtt_s[member, seeds], kind="stable")[:NEAREST].tolist()
            joined = [(k, self._joined(rings[k], member)) for k in options]
            k, ring = min(joined, key=lambda one: self._cost(_with(rings, {one[0]: one[1]})))
            rings[k] = ring
        return self._better(rings)

    # -- local search

    def _settled(self, rings: list[Ring]) -> list[Ring]:
        return self._improved(rings, self._looks)[0]

    def _improved(self, rings: list[Ring], looks: int) -> tuple[list[Ring], int]:
        """Take what gains, again and again, until nothing does or there are no looks left."""
        best = self._cost(rings)
        gained = True
        while gained and looks > 0:
            gained = False
            for changed in self._neighbours(rings):
                looks -= 1
                cost = self._cost(changed)
                if cost < best * (1 - NOTHING):
                    rings, best, gained = self._better(changed), cost, True
                    best = self._cost(rings)
                    break
                if looks <= 0:
                    break
        return rings, looks

    def _neighbours(self, rings: list[Ring]) -> Iterator[list[Ring]]:
        """Groupings one change away, those first that change the group which decides J."""
        order = self._by_weight(rings)
        for k in order:
            yield from self._splits(rings, k)
            yield from self._merges(rings, k)
            yield from self._moves(rings, k)
        for k in order:
            yield from self._swaps(rings, k)

    def _by_weight(self, rings: list[Ring]) -> list[int]:
        step_s = self._schedule(rings).step_s
        return sorted(range(len(rings)), key=lambda k: -step_s[k])

    def _moves(self, rings: list[Ring], k: int) -> Iterator[list[Ring]]:
        """A member of group k elsewhere, or alone; a member of another group into it."""
        for member in self._shuffled(rings[k]):
            rest = _without(rings[k], member)
            for other in range(len(rings)):
                if other != k:
                    yield _with(rings, {k: rest, other: self._joined(rings[other], member)})
            if rest:
                yield [*_with(rings, {k: rest}), (member,)]

    def _swaps(self, rings: list[Ring], k: int) -> Iterator[list[Ring]]:
        for other in range(len(rings)):
            if other == k:
                continue
            for mine in self._shuffled(rings[k]):
                for its in self._shuffled(rings[other]):
                    here = self._joined(_without(rings[k], mine), its)
                    there = self._joined(_without(rings[other], its), mine)
                    yield _with(rings, {k: here, other: there})

    def _merges(self, rings: list[Ring], k: int) -> Iterator[list[Ring]]:
        for other in range(len(rings)):
            if other != k:
                whole = rings[k]
                for member in rings[other]:
                    whole = self._joined(whole, member)
                yield _with(rings, {k: bettered(self._problem, whole), other: ()})

    def _splits(self, rings: list[Ring], k: int) -> Iterator[list[Ring]]:
        """Group k in two: each half nearer to one of the two members farthest from each other."""
        ring = rings[k]
        if len(ring) < 2:
            return
        apart = self._problem.rtt_s[np.ix_(ring, ring)]
        one, two = np.unravel_index(int(apart.argmax()), apart.shape)
        near = apart[one] <= apart[two] if one != two else np.arange(len(ring)) < len(ring) // 2
        halves = [tuple(m for m, its in zip(ring, near, strict=True) if its == side) for side in (True, False)]
        if all(halves):
            yield [*_with(rings, {k: halves[0]}), halves[1]]

    def _joined(self, ring: Ring, member: int) -> Ring:
        """The ring with another member; remembered, for the same few are tried again after each gain."""
        known = self._rings.get((ring, member))
        if known is None:
            known = self._rings[ring, member] = inserted(self._problem, ring, member)
        return known

    def _better(self, rings: Sequence[Ring]) -> list[Ring]:
        """Each of the rings in its best order; remembered, for a gain leaves most as they were."""
        for ring in rings:
            if ring not in self._bettered:
                self._bettered[ring] = bettered(self._problem, ring)
        return [self._bettered[ring] for ring in rings]

    def _shuffled(self, ring: Ring) -> list[int]:
        return self._draw.sample(ring, len(ring))

    # -- costs

    def _cost(self, rings: Sequence[Ring]) -> float:
        """J of a grouping; remembered, for of those that a search among a dozen looks at it saw six in ten before."""
        rings = tuple(rings)
        known = self._known.get(rings)
        if known is None:
            terms = [self._costs.of(ring) for ring in rings]
            known = self._known[rings] = least_cost(terms, self._prices, self._temporal)
        return known

    def _schedule(self, rings: Sequence[Ring]) -> Schedule:
        rings = tuple(rings)
        known = self._schedules.get(rings)
        if known is None:
            terms = [self._costs.of(ring) for ring in rings]
            known = self._schedules[rings] = schedule(terms, self._prices, self._temporal)
        return known

    def _grouping(self, rings: Sequence[Ring]) -> Grouping:
        ordered = sorted(rings, key=min)
        return Grouping(tuple(self._costs.of(ring) for ring in ordered), self._schedule(ordered))


def _with(rings: Sequence[Ring], changed: dict[int, Ring]) -> list[Ring]:
    """The rings with some of them replaced; empty ones are left out."""
    return [ring for k, old in enumerate(rings) if (ring := changed.get(k, old))]


def _without(ring: Ring, member: int) -> Ring:
    return tuple(other for other in ring if other != member)
