"""The order of a group's ring, whose slowest edge and longest round trip set the time of a reduction."""

from __future__ import annotations

import numpy as np

from testbed.planning.constraints import Floats
from testbed.planning.policies.cpn.terms import Problem, Ring, ring_edges, ring_seconds

#: Gains below this part are rounding errors.
NOTHING = 1e-9


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
