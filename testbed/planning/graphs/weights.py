"""Averaging weights over a graph, and how fast averaging with them agrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from testbed.planning.graphs.graph import Graph, GraphError

#: weights[receiver][sender], the receiver itself among the senders; each row sums to 1.
Weights = Mapping[str, Mapping[str, float]]

#: How members weigh what they average.
Weighing = Literal["uniform", "metropolis"]


def weigh(graph: Graph, weighing: Weighing) -> Weights:
    """What each of a graph's members averages by; GraphError when its weights are not for such a graph."""
    return metropolis(graph) if weighing == "metropolis" else uniform(graph)


def uniform(graph: Graph) -> Weights:
    """Each member weighs all that it averages alike, itself included (Hop).

    Members agree on the plain mean only where all have as many in- as out-neighbours, and all equally many.
    """
    rows = {}
    for member in graph.members:
        senders = (member, *graph.sources(member))
        rows[member] = dict.fromkeys(senders, 1 / len(senders))
    return rows


def metropolis(graph: Graph) -> Weights:
    """w[i][j] = 1 / (1 + max(degree i, degree j)), the rest to oneself: any symmetric graph agrees on the plain mean.

    Raises GraphError for a graph with an edge in one direction only.
    """
    if not graph.symmetric:
        u, v = next(edge for edge in sorted(graph.edges) if edge[::-1] not in graph.edges)
        raise GraphError(
            f"Metropolis weights need both directions of each edge: add {v} to {u}, or take uniform ones",
            rule="one-way-edge",
            link=f"{v}->{u}",
        )
    degree = {member: len(graph.sources(member)) for member in graph.members}
    rows = {}
    for member in graph.members:
        row = {other: 1 / (1 + max(degree[member], degree[other])) for other in graph.sources(member)}
        rows[member] = {member: 1 - sum(row.values()), **row}
    return rows


def spectral_gap(weights: Weights) -> float:
    """1 - |second largest eigenvalue|: disagreement shrinks by about that share in a round. In [0, 1]."""
    members = list(weights)
    matrix = np.array([[weights[receiver].get(sender, 0.0) for sender in members] for receiver in members])
    sizes = sorted(np.abs(np.linalg.eigvals(matrix)), reverse=True)
    return float(1 - sizes[1]) if len(sizes) > 1 else 1.0
