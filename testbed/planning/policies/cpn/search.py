"""The search for the grouping of least cost J [ours]: seed, insert, then move, swap, merge, split until nothing helps.

For each number of groups, seeds are chosen farthest-first on the round trip, from the member that computes fastest (and
from random members, where members are few enough to begin several times). The other members join by falling computing
power, each where J rises least. Groups are kept as rings, whose slowest edge and longest round trip set the time of a
reduction; a member joins a ring where its bottleneck suffers least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random

import numpy as np

from testbed.planning.constraints import Floats
from testbed.planning.policies.cpn.schedule import Prices, Schedule, least_cost, schedule
from testbed.planning.policies.cpn.terms import Costs, Problem, Ring, Spatial, Terms, ring_edges, ring_seconds

#: Gains below this part are rounding errors.
NOTHING = 1e-9

#: Up to FEW members, every number of groups is tried, each from STARTS first seeds.
FEW = 12
STARTS = 6

#: The numbers of groups that are tried with more members.
COUNTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
#: With more than MANY members, a member may join the groups of the NEAREST seeds only, and fewer numbers are tried.
MANY = 64
NEAREST = 3
FEWER_COUNTS = (1, 4, 8, 16, 32)

#: The groupings that the local search may evaluate in all; each takes 0.2 ms with two dozen members.
LOOKS = 2_000
#: The same with more than MANY members, where each takes up to 1 ms.
FEWER_LOOKS = 700


@dataclass(frozen=True, slots=True)
class Grouping:
    """A partition of the members into groups."""

    #: The terms of each group.
    groups: tuple[Terms, ...]
    schedule: Schedule

    @property
    def cost(self) -> float:
        """The cost J of the grouping, in seconds per local step."""
        return self.schedule.cost


def search(
    problem: Problem,
    prices: Prices,
    temporal: bool = True,
    spatial: Spatial = "leader",
    seed: int = 0,
    begin: Sequence[Ring] = (),
) -> Grouping:
    """Return the best grouping found. The same arguments give the same grouping.

    500 members take 5 s, a dozen 0.7 s.

    Args:
        problem: The members, the network between them, and their work.
        prices: The prices of skew, staleness and drift.
        temporal: Whether each group has a period and a phase of its own.
        spatial: Where a group exchanges with the others: see `Spatial`.
        seed: The seed of the search's random choices.
        begin: Groups to begin from, in place of all numbers of groups; the search is then local, and takes less time.
    """
    return _GroupingSearch(problem, prices, temporal, spatial, seed).best(begin)


class _GroupingSearch:
    def __init__(self, problem: Problem, prices: Prices, temporal: bool, spatial: Spatial, seed: int) -> None:
        # Cached: the same few insertions are tried again after each gain, a gain leaves most rings unchanged, and in a
        # search among a dozen members six in ten groupings come up again.
        self._joined = cache(partial(inserted, problem))
        self._bettered = cache(partial(bettered, problem))
        self._known_cost = cache(lambda rings: least_cost(self._terms(rings), prices, temporal))
        self._known_schedule = cache(lambda rings: schedule(self._terms(rings), prices, temporal))
        self._problem = problem
        self._costs = Costs(problem, spatial)
        self._draw = Random(seed)
        self._looks = LOOKS if len(problem) <= MANY else FEWER_LOOKS

    def best(self, begin: Sequence[Ring]) -> Grouping:
        if begin:
            return self._grouping(self._improved([tuple(ring) for ring in begin], self._looks)[0])
        found: list[tuple[float, list[Ring]]] = []
        counts = self._counts()
        for left, count in zip(range(len(counts), 0, -1), counts, strict=True):
            share = self._looks // left
            self._looks -= share
            rings, unused = self._for_count(count, share)
            self._looks += unused
            found.append((self._schedule(rings).cost, rings))
        _, rings = min(found, key=lambda one: (float(f"{one[0]:.6g}"), len(one[1])))  # the fewest groups among equals
        return self._grouping(rings)

    def _counts(self) -> list[int]:
        most = len(self._problem)
        if most <= FEW:
            return list(range(1, most + 1))
        return [count for count in (COUNTS if most <= MANY else FEWER_COUNTS) if count <= most]

    def _for_count(self, count: int, looks: int) -> tuple[list[Ring], int]:
        """Return the best grouping that begins with `count` groups, and the evaluations left of `looks`."""
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
        """Return seeds farthest-first on the round trip, the `start`-th time from another first seed."""
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

    def _improved(self, rings: list[Ring], looks: int) -> tuple[list[Ring], int]:
        """Apply changes that reduce J until none does, or `looks` evaluations are made. Returns also the looks left."""
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
        """Yield the groupings one change away; changes to the group that decides J come first."""
        order = self._slowest_first(rings)
        for k in order:
            yield from self._splits(rings, k)
            yield from self._merges(rings, k)
            yield from self._moves(rings, k)
        for k in order:
            yield from self._swaps(rings, k)

    def _slowest_first(self, rings: list[Ring]) -> list[int]:
        step_s = self._schedule(rings).step_s
        return sorted(range(len(rings)), key=lambda k: -step_s[k])

    def _moves(self, rings: list[Ring], k: int) -> Iterator[list[Ring]]:
        """Yield the groupings with a member of group k in another group, or alone."""
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
        """Yield the grouping with group k in halves, each nearer to one of its two members farthest from each other."""
        ring = rings[k]
        if len(ring) < 2:
            return
        apart = self._problem.rtt_s[np.ix_(ring, ring)]
        one, two = np.unravel_index(int(apart.argmax()), apart.shape)
        near = apart[one] <= apart[two] if one != two else np.arange(len(ring)) < len(ring) // 2
        halves = [tuple(m for m, its in zip(ring, near, strict=True) if its == side) for side in (True, False)]
        if all(halves):
            yield [*_with(rings, {k: halves[0]}), halves[1]]

    def _better(self, rings: Sequence[Ring]) -> list[Ring]:
        return [self._bettered(ring) for ring in rings]

    def _shuffled(self, ring: Ring) -> list[int]:
        return self._draw.sample(ring, len(ring))

    # -- costs

    def _terms(self, rings: Sequence[Ring]) -> list[Terms]:
        return [self._costs.of(ring) for ring in rings]

    def _cost(self, rings: Sequence[Ring]) -> float:
        return self._known_cost(tuple(rings))

    def _schedule(self, rings: Sequence[Ring]) -> Schedule:
        return self._known_schedule(tuple(rings))

    def _grouping(self, rings: Sequence[Ring]) -> Grouping:
        ordered = sorted(rings, key=min)
        return Grouping(tuple(self._terms(ordered)), self._schedule(ordered))


def _with(rings: Sequence[Ring], changed: dict[int, Ring]) -> list[Ring]:
    """Return the rings with some of them replaced; empty rings are left out."""
    return [ring for k, old in enumerate(rings) if (ring := changed.get(k, old))]


def _without(ring: Ring, member: int) -> Ring:
    return tuple(other for other in ring if other != member)


def nearest(problem: Problem, members: Ring) -> Ring:
    """Return a ring that begins at the first of `members` and always takes the shortest hop to a remaining member."""
    costs = _hops(problem, len(members))
    left = list(members[1:])
    tour = [members[0]]
    while left:
        onward = left[int(costs[tour[-1], left].argmin())]
        tour.append(onward)
        left.remove(onward)
    return tuple(tour)


def inserted(problem: Problem, ring: Ring, member: int) -> Ring:
    """Return the ring with `member` inserted where its slowest hops get least slow, then where all hops do. O(m)."""
    if len(ring) < 2:
        return (*ring, member)
    here, there = ring_edges(ring)
    size = len(ring) + 1
    slowest = np.zeros(len(ring))
    added = np.zeros(len(ring))
    for costs, worth in ((problem.rtt_s, 0.5), (problem.s_per_byte, problem.model_bytes / size)):
        edges, to, onward = costs[here, there], costs[here, member], costs[member, there]
        slowest += worth * np.maximum(np.maximum(_others_most(edges), to), onward)
        added += worth * (to + onward - np.where(np.isfinite(edges), edges, 0.0))
    ties = np.flatnonzero(slowest <= slowest.min() * (1 + NOTHING))
    after = int(ties[added[ties].argmin()])
    return (*ring[: after + 1], member, *ring[after + 1 :])


def bettered(problem: Problem, ring: Ring) -> Ring:
    """Return the ring after 2-opt on its bottlenecks: parts are reversed, and members moved, while it gets faster.

    Only a change that removes the slowest edge or the longest round trip can help, so a pass tries O(m) rings.
    """
    best = ring_seconds(problem, ring)
    while len(ring) > 3:
        others = _turned(problem, ring)
        seconds = [ring_seconds(problem, other) for other in others]
        least = min(range(len(others)), key=seconds.__getitem__)
        if not seconds[least] < best * (1 - NOTHING):
            break
        ring, best = others[least], seconds[least]
    return min(ring, ring[::-1], key=lambda one: ring_seconds(problem, one))


def _turned(problem: Problem, ring: Ring) -> list[Ring]:
    """Return rings without one of the bottlenecks: with a part behind it reversed, or one of its ends moved."""
    here, there = ring_edges(ring)
    worst = {int(costs[here, there].argmax()) for costs in (problem.s_per_byte, problem.rtt_s)}
    others = []
    for edge in sorted(worst):
        turned = (*ring[edge + 1 :], *ring[: edge + 1])  # the bottleneck closes the ring
        others += [(*turned[:cut][::-1], *turned[cut:]) for cut in range(2, len(turned))]
        for end in (turned[0], turned[-1]):
            others.append(inserted(problem, tuple(m for m in turned if m != end), end))
    return others


def _hops(problem: Problem, size: int) -> Floats:
    """Return the seconds of one step along each edge, in a ring of `size` members."""
    hops: Floats = problem.rtt_s / 2 + problem.model_bytes / size * problem.s_per_byte
    return hops


def _others_most(values: Floats) -> Floats:
    """Return for each value the largest of the other values."""
    largest = int(values.argmax())
    rest = values.copy()
    rest[largest] = -np.inf
    most = np.full(len(values), values[largest])
    most[largest] = rest.max()
    return most
