"""The input of the heuristic as arrays, and the costs of one group by itself.

A group computes, reduces inside, and exchanges with the rest, and its labels have a skew:

    T = max h_i·step_i + 2(m − 1)·(max RTT/2 + M/(m·min c))          a round: local steps, then the ring
    E = RTT + M/c_up + M/c_down                                     an exchange, over the leader or in shards

m is the number of the group's members, h_i a member's local steps to a round, M the model's bytes, and c a rate.

While groups still form, the roots that hold the rest of the model are unknown. The rates of an exchange are therefore
harmonic means, and its round trip is the longest, over all outside members at other sites (or over all outside members,
if none is at another site): the time to send a slice to each of them. So the costs of a group depend on its own members
alone, and a move changes the costs of two groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.planning.constraints import GOODPUT, Floats, Ints
from testbed.planning.view import View

#: `leader`: one member exchanges for its group. `spread`: the leader exchanges over the paths to all other sites at
#: once, a part of the model over each. `sharded`: each of m members exchanges an m-th of the model.
Spatial = Literal["leader", "spread", "sharded"]

#: Members in the order of their ring.
Ring = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """The input of the grouping heuristic: a view of the network and the members' training, as arrays."""

    names: tuple[str, ...]
    #: Each member's site, as a number; shape (n,).
    sites: Ints
    model_bytes: float
    #: Seconds per payload byte, and round trips in seconds; shape (n, n), infinite without an edge, 0 on the diagonal.
    s_per_byte: Floats
    rtt_s: Floats
    #: Seconds of a member's local step, and its steps in a round; shape (n,).
    step_s: Floats
    steps: Ints
    #: Each member's part of all samples; they add up to 1.
    weights: Floats
    #: Each member's samples by label; shape (n, labels), without columns if labels are unknown.
    labels: Floats

    @classmethod
    def of(
        cls,
        view: View,
        step_s: float,
        every: int,
        labels: Mapping[str, Sequence[float]],
        steps: Mapping[str, int] | None = None,
    ) -> Problem:
        """Return the heuristic's input for a view.

        Args:
            view: The network.
            step_s: Seconds of a local step at speed 1.
            every: Steps of the fastest member in a round. The others take as many as they can in that time, at least
                one: h_i = clip(round(T·c_i/B), 1, every).
            labels: Each member's samples by label, or nothing.
            steps: Members' steps in a round, in place of those that `every` leads to.
        """
        names = view.names
        number = {name: i for i, name in enumerate(names)}
        s_per_byte, rtt_s = (np.full((len(names), len(names)), np.inf) for _ in range(2))
        for (source, target), edge in view.edges.items():
            pair = number[source], number[target]
            s_per_byte[pair] = 8 / (edge.rate_bps * GOODPUT)
            rtt_s[pair] = edge.rtt_s
        np.fill_diagonal(s_per_byte, 0)
        np.fill_diagonal(rtt_s, 0)
        speed = np.array([member.speed for member in view.members])
        known = {site: i for i, site in enumerate(view.sites())}
        counts = np.array([labels[name] for name in names], dtype=float) if labels else np.ones((len(names), 0))
        usual = np.clip(np.rint(every * speed / speed.max()), 1, every).astype(np.int64)
        samples = counts.sum(axis=1) if labels else np.ones(len(names))
        return cls(
            names=names,
            sites=np.array([known[member.site] for member in view.members]),
            model_bytes=float(view.model_bytes),
            s_per_byte=s_per_byte,
            rtt_s=rtt_s,
            step_s=step_s / speed,
            steps=np.array([(steps or {}).get(name, own) for name, own in zip(names, usual.tolist(), strict=True)]),
            weights=samples / samples.sum(),
            labels=counts,
        )

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Terms:
    """The times and costs of one group, as if there were no other group."""

    ring: Ring
    #: The members that exchange with other groups, and the sites where these are.
    leaders: tuple[int, ...]
    sites: frozenset[int]
    #: Seconds of a round's local steps, and of an all-reduce around the ring.
    compute_s: float
    ring_s: float
    #: The longest round trip of an exchange, and the seconds of its bytes both ways if no other group exchanges.
    rtt_s: float
    transfer_s: float
    #: h̄, the weighted mean of the members' local steps in a round.
    steps: float
    #: The Jensen–Shannon divergence between the group's labels and all members' labels, in bits; 0 if they are alike.
    skew: float

    @property
    def round_s(self) -> float:
        """The seconds T of a round inside the group."""
        return self.compute_s + self.ring_s

    @property
    def exchange_s(self) -> float:
        """The seconds E of an exchange while no other group exchanges."""
        return self.rtt_s + self.transfer_s

    @property
    def stale(self) -> float:
        """The number of the group's rounds that pass during an exchange."""
        return self.exchange_s / self.round_s


class Costs:
    """Computes the terms of any group of a problem, and remembers them."""

    def __init__(self, problem: Problem, spatial: Spatial = "leader") -> None:
        self.problem = problem
        self._spatial = spatial
        self._known: dict[Ring, Terms] = {}
        both = np.isfinite(problem.s_per_byte) & np.isfinite(problem.s_per_byte.T)
        self._linked = both & ~np.eye(len(problem), dtype=bool)
        self._away = self._linked & (problem.sites[:, None] != problem.sites)
        self._compute_s = problem.steps * problem.step_s
        self._mix = _shares(problem.labels.sum(axis=0))

    def of(self, ring: Ring) -> Terms:
        """Return the terms of the group with this ring. O(m² + n)."""
        known = self._known.get(ring)
        if known is None:
            known = self._known[ring] = self._terms(ring)
        return known

    def _terms(self, ring: Ring) -> Terms:
        problem = self.problem
        group = np.array(ring)
        weights = problem.weights[group]
        leaders, rtt_s, transfer_s = self._exchange(group)
        return Terms(
            ring=ring,
            leaders=leaders,
            sites=frozenset(problem.sites[list(leaders)].tolist()),
            compute_s=float(self._compute_s[group].max()),
            ring_s=ring_seconds(problem, ring),
            rtt_s=rtt_s,
            transfer_s=transfer_s,
            steps=float(weights @ problem.steps[group] / weights.sum()),
            skew=_divergence(_shares(problem.labels[group].sum(axis=0)), self._mix),
        )

    def _exchange(self, group: Ints) -> tuple[tuple[int, ...], float, float]:
        """Return which members of a group exchange the model with other groups, and the seconds that this takes.

        Returns:
            Those members; their longest round trip to members of other groups; the seconds of the bytes both ways.
        """
        if len(group) == len(self.problem):
            return (int(group[0]),), 0.0, 0.0
        linked = self._linked[group]
        linked[:, group] = False
        away = linked & self._away[group]
        counted = away if away.any() else linked
        up = _mean(self.problem.s_per_byte[group], counted)
        down = _mean(self.problem.s_per_byte[:, group].T, counted)
        if self._spatial != "sharded":
            first = int(np.maximum(up, down).argmin())  # the largest min(c_up, c_down)
            chosen = group[first : first + 1]
            ways = len(np.unique(self.problem.sites[counted[first]])) if self._spatial == "spread" else 1
            seconds = self.problem.model_bytes / max(ways, 1) * float(up[first] + down[first])
        else:
            chosen = group
            # Members of one site share its links, so shards bring a site nothing.
            sites = self.problem.sites[group]
            together = (sites[:, None] == sites).sum(axis=1)
            seconds = self.problem.model_bytes / len(group) * float(((up + down) * together).max())
        speaks = np.isin(group, chosen)
        rtt_s = self.problem.rtt_s[group][linked & speaks[:, None]]
        return tuple(map(int, chosen)), float(rtt_s.max(initial=0.0)), seconds


def ring_seconds(problem: Problem, ring: Ring) -> float:
    """Return the seconds of an all-reduce around a ring: 2(m − 1) steps of 1/m, each as slow as the slowest edge."""
    if len(ring) == 1:
        return 0.0
    here, there = ring_edges(ring)
    hop_s = problem.rtt_s[here, there].max() / 2
    return 2 * (len(ring) - 1) * float(hop_s + problem.model_bytes / len(ring) * problem.s_per_byte[here, there].max())


def ring_edges(ring: Ring) -> tuple[Ints, Ints]:
    """Return the senders and the receivers of the ring's edges."""
    return np.array(ring), np.array((*ring[1:], ring[0]))


def _mean(costs: Floats, counted: NDArray[np.bool_]) -> Floats:
    """Return each row's mean over the columns that `counted` marks in that row; infinite if it marks none there."""
    count = counted.sum(axis=1)
    total = np.where(counted, costs, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.inf)


def _shares(counts: Floats) -> Floats:
    total = counts.sum()
    return counts / total if total else counts


def _divergence(p: Floats, q: Floats) -> float:
    """Return the Jensen–Shannon divergence of two distributions in bits: 0 if equal, 1 if they share nothing."""
    middle = (p + q) / 2

    def towards(one: Floats) -> float:
        held = one > 0
        return float((one[held] * np.log2(one[held] / middle[held])).sum())

    return max((towards(p) + towards(q)) / 2, 0.0)
