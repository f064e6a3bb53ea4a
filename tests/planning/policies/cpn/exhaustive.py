"""The least cost J there is, by looking at all: groupings, rings, leaders and periods. For a handful of members."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from testbed.planning.policies.cpn import Costs, Prices, Problem, Terms
from testbed.planning.policies.cpn.schedule import PERIODS
from testbed.planning.policies.cpn.terms import ring_seconds

Set = frozenset[int]


def least_cost(problem: Problem, prices: Prices) -> float:
    """J of the best grouping. Bell(8) = 4,140 groupings of 8 members take some seconds."""
    options = {group: _options(problem, group) for group in _subsets(len(problem))}
    best = np.inf
    for grouping in _partitions(list(range(len(problem)))):
        for groups in itertools.product(*(options[group] for group in grouping)):
            if _unmet(groups, prices) < best:
                best = min(best, _least(groups, prices))
    return best


def _subsets(count: int) -> Iterator[Set]:
    for size in range(1, count + 1):
        yield from map(frozenset, itertools.combinations(range(count), size))


def _partitions(members: list[int]) -> Iterator[tuple[Set, ...]]:
    if not members:
        yield ()
        return
    first, *rest = members
    for size in range(len(rest) + 1):
        for others in itertools.combinations(rest, size):
            left = [member for member in rest if member not in others]
            for parts in _partitions(left):
                yield (frozenset((first, *others)), *parts)


def _options(problem: Problem, group: Set) -> list[Terms]:
    """The group with its fastest ring and each leader that no other one is better than in all respects."""
    first, *rest = sorted(group)
    ring = min(((first, *order) for order in itertools.permutations(rest)), key=lambda r: ring_seconds(problem, r))
    found = Costs(problem).of(ring)
    outside = [m for m in range(len(problem)) if m not in group]
    if not outside:
        return [found]
    each = [_led(problem, found, leader, outside) for leader in ring]
    return [
        one
        for i, one in enumerate(each)
        if not any(
            (other.rtt_s, other.transfer_s) <= (one.rtt_s, one.transfer_s)
            and other.transfer_s <= one.transfer_s
            and (j < i or (other.rtt_s, other.transfer_s) != (one.rtt_s, one.transfer_s))
            for j, other in enumerate(each)
            if j != i
        )
    ]


def _led(problem: Problem, terms: Terms, leader: int, outside: Sequence[int]) -> Terms:
    rtt_s = float(problem.rtt_s[leader, outside].max())
    away = [m for m in outside if problem.sites[m] != problem.sites[leader]]
    to = away if any(problem.sites[m] != problem.sites[i] for m in outside for i in terms.ring) else list(outside)
    rates = [problem.s_per_byte[leader, m] + problem.s_per_byte[m, leader] for m in to]
    site = frozenset([int(problem.sites[leader])])
    seconds = problem.model_bytes * float(np.mean(rates)) if rates else np.inf
    return replace(terms, leaders=(leader,), sites=site, rtt_s=rtt_s, transfer_s=seconds)


def _costs(groups: Sequence[Terms], prices: Prices, periods: np.ndarray, meeting: bool) -> np.ndarray:
    """J for rows of periods; written again, so that it checks the heuristic's own."""
    count = len(groups)
    round_s, rtt_s, transfer_s, steps = (
        np.array([getattr(g, name) for g in groups]) for name in ("round_s", "rtt_s", "transfer_s", "steps")
    )
    busy = 1 - periods * round_s / (periods * round_s + rtt_s + transfer_s)
    slowest = np.zeros(len(periods))
    for k, group in enumerate(groups):
        met = np.zeros(len(periods))
        if meeting and count > 1:
            rest = np.maximum(busy.sum(axis=1) - busy[:, k], 1e-12)
            for j, other in enumerate(groups):
                if j != k:
                    shared = 1.0 if group.sites & other.sites else 1 / count
                    met += shared * busy[:, j] / rest * np.maximum(busy.sum(axis=1) - 1, 0)
        cycle_s = periods[:, k] * round_s[k] + rtt_s[k] + transfer_s[k] * (1 + met)
        slowest = np.maximum(slowest, cycle_s / (periods[:, k] * _mean_steps(groups)))
    skew = sum(g.skew for g in groups) / count
    stale = sum((g.rtt_s + g.transfer_s) / g.round_s for g in groups) / count
    drift = (periods * steps).mean(axis=1)
    return slowest * (1 + prices.skew * skew + prices.stale * stale + prices.drift * drift)


def cost_of(groups: Sequence[Terms], prices: Prices, periods: Sequence[int]) -> float:
    """J of groups with these periods."""
    return float(_costs(groups, prices, np.array([periods]), meeting=True)[0])


def _least(groups: Sequence[Terms], prices: Prices) -> float:
    rows = np.array(list(itertools.product(PERIODS if len(groups) > 1 else [1], repeat=len(groups))))
    return float(_costs(groups, prices, rows, meeting=True).min())


def _unmet(groups: Sequence[Terms], prices: Prices) -> float:
    """A bound from below that is quick: as if no two groups ever met, each bound's shortest periods are best."""
    steps = _mean_steps(groups)
    each = np.array([[(g.round_s + (g.rtt_s + g.transfer_s) / p) / steps for g in groups] for p in PERIODS])
    bounds = each[each >= each[-1].max()]
    rows = PERIODS[(each <= bounds[:, None, None]).argmax(axis=1)]
    return float(_costs(groups, prices, rows, meeting=False).min())


def _mean_steps(groups: Sequence[Terms]) -> float:
    """All members' mean local steps in a round."""
    return sum(len(g.ring) * g.steps for g in groups) / sum(len(g.ring) for g in groups)
