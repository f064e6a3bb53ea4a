"""When groups exchange, and with that the cost J of a grouping.

    J = max_k (T_k + E'_k/τ_k)/h̄ · (1 + λ1·mean skew_k + λ2·mean stale_k + λ3·mean τ_k·h̄_k)

The first factor is the seconds of one local step where the slowest group sets the pace, its part of a round and of an
exchange included, with h̄ the mean over all members: a group that is ahead waits for exchanges that are overdue, so in
the long run all go as far in rounds [ours; with each group's own h̄_k, slow members were to be paired with fast ones
over the WAN]. The second is what a second of it is worth less: groups that see other labels than all do, that merge
what is old, that drift apart between exchanges. Without dividing by the work, one step and an exchange after each would
always win.

Periods τ are powers of two, so that phases can be laid out evenly: by rising period, each takes the phase of its period
that is used least, and of these the one farthest from the used ones. An exchange lasts a while, so group k is in one
for the part u_k = E_k/(τ_k·T_k + E_k) of the time. Up to Σ u = 1 the phases keep groups from meeting; beyond that, a
group meets Σ u − 1 others on average (in proportion to their u), and what it shares with group l waits for both:

    E'_k = RTT_k + M(1/c_up + 1/c_down)·(1 + Σ_l met_l·shared_kl)

shared is 1 where both leave the same site, else 1/K, for l sends here what it has of the slice that k holds. Groups
that all exchange at once (not `temporal`) have one period. They do so along trees, on which both directions are used at
a time, and only those meet that leave the same site: E = RTT + M(1/c_up + 1/c_down)/2·how many do. To the slowest
group's seconds comes a tenth of the groups' mean, since what nobody waits for holds links, too. Nothing is stale.

Where rounds go on beside the next one's steps (`overlap`), each lasts as long as the longer of the two: T_k is the
longer of computing and the ring, and of E'_k there only counts what is more than T_k; the shorter costs a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf

import numpy as np

from testbed.planning.policies.cpn.problem import Floats, Ints
from testbed.planning.policies.cpn.terms import Terms

PERIODS = np.array([1, 2, 4, 8, 16, 32])

#: Less time in exchanges than this part is none.
NOTHING = 1e-12

#: What the shorter of two things costs that go on side by side: it holds links and processors that others could use.
BESIDE = 0.1


def beside(one_s: Floats, other_s: Floats) -> Floats:
    """What two things cost that go on side by side."""
    both: Floats = np.maximum(one_s, other_s) + BESIDE * np.minimum(one_s, other_s)
    return both


@dataclass(frozen=True, slots=True)
class Prices:
    """λ1, λ2, λ3: what a bit of `skew`, a round of `stale`ness and a local step of `drift` add to the cost.

    `overlap`: rounds go on beside the next one's steps, so only what is longer than those costs time.
    """

    skew: float = 1.0
    stale: float = 0.05
    drift: float = 0.005
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """Each group's period and phase, its seconds per local step, and what they cost: J = max(step_s) · (1 + the rest).

    Group k exchanges in the rounds r with r mod periods[k] = phases[k].
    """

    periods: tuple[int, ...]
    phases: tuple[int, ...]
    step_s: tuple[float, ...]
    skew: float
    stale: float
    drift: float

    @property
    def cost(self) -> float:
        """J, in seconds per local step."""
        return max(self.step_s) * (1 + self.skew + self.stale + self.drift)


def schedule(groups: Sequence[Terms], prices: Prices, temporal: bool = True) -> Schedule:
    """The periods and phases of least cost. O(K² · periods²).

    For a bound on the seconds per step, the shortest periods that keep it are the best: J's other factor only grows
    with them. So each value that a group's seconds can take is tried as the bound. What groups lose by meeting is left
    out of that, and charged afterwards; then one group's period at a time is doubled or halved while that gains.
    """
    figures = _Figures(groups, prices)
    if len(groups) == 1:
        return figures.at(np.array([1]), staggered=temporal)
    if not temporal:
        common = [figures.at(np.full(len(groups), period), staggered=False) for period in PERIODS]
        return min(common, key=lambda one: one.cost)
    return figures.at(figures.best())


def least_cost(groups: Sequence[Terms], prices: Prices, temporal: bool = True) -> float:
    """J of the groups' `schedule` before single periods are changed: quick, and now and then some per cent too high."""
    if len(groups) == 1 or not temporal:
        return schedule(groups, prices, temporal).cost
    figures = _Figures(groups, prices)
    return float(figures.costs(figures.candidates()).min())


def phases_of(periods: Sequence[int]) -> tuple[int, ...]:
    """A phase for each period such that as few groups as can be exchange in one round."""
    used = np.zeros(max(periods))
    phases = [0] * len(periods)
    for group in sorted(range(len(periods)), key=lambda group: periods[group]):
        period = periods[group]
        load = used.reshape(-1, period).max(axis=0)
        free = np.flatnonzero(load == load.min())
        phases[group] = int(free[_distances(free, np.flatnonzero(load), period).argmax()])
        used[phases[group] :: period] += 1
    return tuple(phases)


def _distances(phases: Ints, taken: Ints, period: int) -> Ints:
    """Rounds from each phase to the nearest that is taken, before or after it."""
    apart = np.abs(taken - phases[:, None])
    nearest: Ints = np.minimum(apart, period - apart).min(axis=1, initial=period)
    return nearest


class _Figures:
    """The groups' terms side by side."""

    def __init__(self, groups: Sequence[Terms], prices: Prices) -> None:
        values = np.array([(g.compute_s, g.ring_s, g.rtt_s, g.transfer_s, g.steps, g.skew, g.stale) for g in groups])
        self._compute_s, ring_s, self._rtt_s, self._transfer_s, self._steps = values[:, :5].T
        self._overlap = prices.overlap
        self._round_s = beside(self._compute_s, ring_s) if self._overlap else self._compute_s + ring_s
        # Sums, not `mean` and `average`: those take four times as long for few numbers, and a search has thousands.
        self._skew = prices.skew * float(values[:, 5].sum() / len(groups))
        self._stale = prices.stale * float(values[:, 6].sum() / len(groups))
        self._drift = prices.drift
        self._groups = groups

    @cached_property
    def _mean_steps(self) -> float:
        """h̄ over all groups' members."""
        members = np.array([len(group.ring) for group in self._groups])
        return float((self._steps * members).sum() / members.sum())

    @cached_property
    def _shared(self) -> Floats:
        """How much of what a group (row) waits for another's exchange (column) takes; nothing for its own."""
        count = len(self._groups)
        shared = np.full((count, count), 1 / count)
        for one, other in combinations(range(count), 2):
            if self._groups[one].sites & self._groups[other].sites:
                shared[one, other] = shared[other, one] = 1.0
        np.fill_diagonal(shared, 0.0)
        return shared

    def _waits(self, periods: Ints) -> Floats:
        """Σ_l met_l·shared_kl of each group, for rows of periods, with phases laid out evenly."""
        inside_s = periods * self._round_s
        busy = 1 - inside_s / (inside_s + self._rtt_s + self._transfer_s)
        whole = busy.sum(axis=-1, keepdims=True)
        if whole.max() <= 1:
            return np.zeros_like(busy)  # phases keep all apart, as they mostly do: there is no need to know who shares
        others = np.maximum(whole - busy, NOTHING)
        waits: Floats = np.maximum(whole - 1, 0.0) / others * (busy @ self._shared)
        return waits

    def _step_s(self, periods: Ints, waits: Floats | float) -> Floats:
        """Seconds per local step of every group, for rows of periods."""
        exchange_s = self._rtt_s + self._transfer_s * (1 + waits)
        if self._overlap:
            exchange_s = np.maximum(beside(self._compute_s, exchange_s) - self._round_s, 0.0)
        seconds: Floats = (self._round_s + exchange_s / periods) / self._mean_steps
        return seconds

    def candidates(self) -> Ints:
        """Rows of periods: for each bound, every group's shortest that keeps it."""
        each = self._step_s(PERIODS[:, None], 0.0)  # (periods, groups), falling in each column
        bounds = each[each >= each[-1].max()]
        first = (each <= bounds[:, None, None]).argmax(axis=1)
        rows: Ints = PERIODS[first]
        return rows

    def best(self) -> Ints:
        """The periods of least cost among those that `schedule` tries."""
        rows, best, cost = self.candidates(), np.ones(len(self._groups), dtype=np.int64), inf
        while (costs := self.costs(rows)).min() < cost * (1 - NOTHING):
            least = int(costs.argmin())
            best, cost = rows[least], float(costs[least])
            rows = _one_changed(best)
        return best

    def costs(self, periods: Ints) -> Floats:
        """J of each row of periods."""
        drift = self._drift * ((periods * self._steps).sum(axis=-1) / len(self._groups))
        slowest = self._step_s(periods, self._waits(periods)).max(axis=-1)
        costs: Floats = slowest * (1 + self._skew + self._stale + drift)
        return costs

    def at(self, periods: Ints, staggered: bool = True) -> Schedule:
        """The schedule with these periods; not `staggered`, all exchange at once."""
        if staggered:
            step_s = self._step_s(periods, self._waits(periods))
        else:
            together = 1 + (self._shared == 1.0).sum(axis=1)  # groups that leave the same site share its way out
            step_s = self._step_s(periods, together / 2 - 1)
            step_s += BESIDE * step_s.mean()
        whole = tuple(map(int, periods))
        return Schedule(
            periods=whole,
            phases=phases_of(whole) if staggered else (0,) * len(whole),
            step_s=tuple(map(float, step_s)),
            skew=self._skew,
            stale=self._stale if staggered else 0.0,
            drift=self._drift * float((periods * self._steps).mean()),
        )


def _one_changed(periods: Ints) -> Ints:
    """Rows of periods in which one is doubled or halved."""
    each = np.eye(len(periods), dtype=np.int64)
    rows = np.concatenate([periods + each * periods, periods - each * (periods - periods // 2)])
    found: Ints = rows[((rows >= PERIODS[0]) & (rows <= PERIODS[-1])).all(axis=1)]
    return found
