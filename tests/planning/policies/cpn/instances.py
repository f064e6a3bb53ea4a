"""Random networks as the CPN framework's evaluation has them: regions, unequal links, computing power and labels."""

from __future__ import annotations

import itertools

import numpy as np

from testbed.planning import Edge, Member, View
from testbed.planning.policies.cpn import Problem

LABELS = 10


def view_of(seed: int, count: int) -> View:
    """`count` members in 1 to 4 regions: RTT 10–250 ms, 20–500 Mbit/s each way, speeds from 1 to an eighth."""
    draw = np.random.default_rng(seed)
    regions = int(draw.integers(1, 5))
    region = draw.integers(0, regions, count)
    between = draw.uniform(0.03, 0.25, (regions, regions))
    members = tuple(Member(f"m{i}", f"s{region[i]}", float(1 / draw.uniform(1, 8)), "", "") for i in range(count))
    edges = {}
    for i, j in itertools.combinations(range(count), 2):
        same = region[i] == region[j]
        rtt_s = float(
            draw.uniform(0.01, 0.02) if same else between[min(region[i], region[j]), max(region[i], region[j])]
        )
        for u, v in ((i, j), (j, i)):
            rate = draw.uniform(200e6, 1e9) if same else draw.uniform(20e6, 500e6)
            edges[f"m{u}", f"m{v}"] = Edge(float(rate), rtt_s)
    return View(members, {}, {}, edges, int(draw.integers(1_000_000, 100_000_000)))


def labels_of(seed: int, view: View) -> dict[str, list[float]]:
    draw = np.random.default_rng((seed, 1))
    alpha = draw.choice([0.1, 0.5, 100.0])
    shares = draw.dirichlet([alpha] * len(view.names), LABELS).T
    return {name: [float(x) for x in np.round(1000 * row) + 1] for name, row in zip(view.names, shares, strict=True)}


def problem_of(seed: int, count: int) -> Problem:
    view = view_of(seed, count)
    return Problem.of(view, 0.1, 8, labels_of(seed, view))
