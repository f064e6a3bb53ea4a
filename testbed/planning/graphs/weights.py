"""Averaging weights over a graph, and the speed at which averaging with them agrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from testbed.planning.graphs.graph import Graph, GraphError

#: weights[receiver][sender], the receiver itself among the senders; each row sums to 1.
Weights = Mapping[str, Mapping[str, float]]

#: The rule by which members weigh the parameters that they average.
Weighing = Literal["uniform", "metropolis"]


def weigh(graph: Graph, weighing: Weighing) -> Weights:
    """Return the weights by a rule. Raises GraphError if the rule does not fit the graph."""
    return metropolis(graph) if weighing == "metropolis" else uniform(graph)


def uniform(graph: Graph) -> Weights:
    """Return equal weights of each member's senders and itself (Hop, arXiv 1902.01064).

    Members agree on the plain mean only if all have as many in-neighbours as out-neighbours, and all equally many.
    """
    rows = {}
    for member in graph.members:
        senders = (member, *graph.sources(member))
        rows[member] = dict.fromkeys(senders, 1 / len(senders))
    return rows


def metropolis(graph: Graph) -> Weights:
    """Return Metropolis weights (Xiao, Boyd and Lall 2005): any symmetric graph agrees on the plain mean.

    w[i][j] = 1 / (1 + max(degree i, degree j)) for neighbours; the rest is the member's own weight.

    Raises:
        GraphError: The graph has an edge in one direction only.
    """
    if not graph.symmetric:
        u, v = next(edge for edge in sorted(graph.edges) if edge[::-1] not in graph.edges)
        raise GraphError(
            f"Metropolis weights need both directions of each edge: add an edge {v} to {u}, or take uniform weights",
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
    """Return 1 - |second largest eigenvalue|, in [0, 1]: the part by which disagreement shrinks in about a round."""
    members = list(weights)
    matrix = np.array([[weights[receiver].get(sender, 0.0) for sender in members] for receiver in members])
    sizes = sorted(np.abs(np.linalg.eigvals(matrix)), reverse=True)
    return float(1 - sizes[1]) if len(sizes) > 1 else 1.0
