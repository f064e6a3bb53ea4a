"""The schedule of exchanges between groups, and the cost J of a grouping with it [ours].

    J = max_k (T_k + E'_k/τ_k)/h̄ · (1 + λ1·mean skew_k + λ2·mean stale_k + λ3·mean τ_k·h̄_k)

Group k has the round T_k, the exchange E_k, the steps h̄_k and the label skew of `terms`, the period τ_k, and
stale_k = E_k/T_k. The λ are `Prices`; K is the number of groups.

The first factor is the seconds of one local step. The slowest group sets the pace, with its part of a round and of an
exchange; h̄ is the mean over all members, because a group that is ahead waits for overdue exchanges, so that in the
long run all groups complete equally many rounds. (With each group's own h̄_k, slow members would be paired with fast
ones over the WAN.) The second factor is the loss of worth of a second, for groups whose labels differ from all
members', that merge stale models, or that drift apart between exchanges. Without the division by the work, one step
with an exchange after it would always win.

Periods τ are powers of two, so that phases can be laid out evenly: by rising period, each group takes the least used
phase of its period, and among these the one farthest from the used phases. An exchange takes time, so group k exchanges
during the part u_k = E_k/(τ_k·T_k + E_k) of the time. Up to Σ u = 1 the phases keep exchanges apart. Beyond that, an
exchange coincides with Σ u − 1 others on average (in proportion to their u), and shares links with group l:

    E'_k = RTT_k + M(1/c_up + 1/c_down)·(1 + Σ_l coinciding_l·shared_kl)

shared is 1 if both groups leave the same site, else 1/K, because l sends to k its part of the slice that k holds.
Groups that all exchange at once (not `temporal`) have one period. They exchange along trees, which use both directions
at a time, and only groups that leave the same site share links: E = RTT + M(1/c_up + 1/c_down)/2·the number of these
groups. A tenth of the groups' mean is added to the slowest group's seconds, because faster exchanges occupy links too.
Nothing is stale.

Where rounds overlap the next round's steps (`overlap`), a round lasts as long as the longer of the two: T_k is the
longer of computing and the ring, and only the part of E'_k beyond T_k counts; the shorter of the two costs a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf

import numpy as np

from testbed.planning.constraints import Floats, Ints
from testbed.planning.policies.cpn.terms import Terms

#: The periods that a group may have.
PERIODS = np.array([1, 2, 4, 8, 16, 32])

#: Seconds that stand for an infinite time, such as that of a ring without one of its edges: two infinite times have no
#: difference and no ratio.
NEVER_S = 1e15

#: Parts below this one are rounding errors.
NOTHING = 1e-12

#: The part of the shorter of two overlapping activities that counts, because it holds links and processors.
BESIDE = 0.1


def beside(one_s: Floats | float, other_s: Floats | float) -> Floats:
    """Return the seconds of two overlapping activities: the longer one, and the part BESIDE of the shorter one."""
    both: Floats = np.maximum(one_s, other_s) + BESIDE * np.minimum(one_s, other_s)
    return both


@dataclass(frozen=True, slots=True)
class Prices:
    """The weights of the cost J. The defaults are our estimates, from no paper and from no measurement."""

    #: λ1: the part that a bit of label skew adds to the cost.
    skew: float = 1.0
    #: λ2: the part that a round of staleness adds.
    stale: float = 0.05
    #: λ3: the part that a local step between exchanges adds.
    drift: float = 0.005
    #: Whether rounds overlap the next round's steps.
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """The periods and phases of groups, and their cost J = max(step_s) · (1 + skew + stale + drift)."""

    #: Group k exchanges in the rounds r with r mod periods[k] = phases[k].
    periods: tuple[int, ...]
    phases: tuple[int, ...]
    #: Each group's seconds per local step.
    step_s: tuple[float, ...]
    skew: float
    stale: float
    drift: float

    @property
    def cost(self) -> float:
        """The cost J of the groups under this schedule, in seconds per local step."""
        return max(self.step_s) * (1 + self.skew + self.stale + self.drift)


def schedule(groups: Sequence[Terms], prices: Prices, temporal: bool = True) -> Schedule:
    """Return the periods and phases of least cost. O(K² · periods²).

    For a bound on the seconds per step, the shortest periods that keep it are the best, because J's other factor only
    grows with the periods. So each value of a group's seconds is tried as the bound, first without the cost of
    coinciding exchanges. Then one group's period at a time is doubled or halved while the whole J falls.
    """
    figures = _GroupArrays(groups, prices)
    if len(groups) == 1:
        return figures.at(np.array([1]), staggered=temporal)
    if not temporal:
        common = [figures.at(np.full(len(groups), period), staggered=False) for period in PERIODS]
        return min(common, key=lambda one: one.cost)
    return figures.at(figures.best())


def least_cost(groups: Sequence[Terms], prices: Prices, temporal: bool = True) -> float:
    """Return J of the groups' `schedule` before single periods change: fast, and sometimes some percent too high."""
    if len(groups) == 1 or not temporal:
        return schedule(groups, prices, temporal).cost
    figures = _GroupArrays(groups, prices)
    return float(figures.costs(figures.candidates()).min())


def phases_of(periods: Sequence[int]) -> tuple[int, ...]:
    """Return a phase for each period, such that the fewest groups exchange in one round."""
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
    """Return the rounds from each phase to the nearest taken phase, before or after it."""
    apart = np.abs(taken - phases[:, None])
    nearest: Ints = np.minimum(apart, period - apart).min(axis=1, initial=period)
    return nearest


class _GroupArrays:
    """The terms of groups as arrays, shape (K,). Methods take rows of periods, shape (rows, K) or (K,)."""

    def __init__(self, groups: Sequence[Terms], prices: Prices) -> None:
        values = np.array([(g.compute_s, g.ring_s, g.rtt_s, g.transfer_s, g.steps, g.skew, g.stale) for g in groups])
        values = np.fmin(values, NEVER_S)  # replaces nan, too: the ratio `stale` of two infinite times
        self._compute_s, ring_s, self._rtt_s, self._transfer_s, self._steps = values[:, :5].T
        self._overlap = prices.overlap
        self._round_s = beside(self._compute_s, ring_s) if self._overlap else self._compute_s + ring_s
        # Sums, because `mean` and `average` take four times as long for few numbers, and a search has thousands.
        self._skew = prices.skew * float(values[:, 5].sum() / len(groups))
        self._stale = prices.stale * float(values[:, 6].sum() / len(groups))
        self._drift = prices.drift
        self._groups = groups

    @cached_property
    def _mean_steps(self) -> float:
        """The mean h̄ over all groups' members."""
        members = np.array([len(group.ring) for group in self._groups])
        return float((self._steps * members).sum() / members.sum())

    @cached_property
    def _shared(self) -> Floats:
        """The part of a group's links (row) that another group's exchange (column) uses; 0 for its own."""
        count = len(self._groups)
        shared = np.full((count, count), 1 / count)
        for one, other in combinations(range(count), 2):
            if self._groups[one].sites & self._groups[other].sites:
                shared[one, other] = shared[other, one] = 1.0
        np.fill_diagonal(shared, 0.0)
        return shared

    def _waits(self, periods: Ints) -> Floats:
        """Return Σ_l coinciding_l·shared_kl of each group, with phases laid out evenly."""
        inside_s = periods * self._round_s
        busy = 1 - inside_s / (inside_s + self._rtt_s + self._transfer_s)
        whole = busy.sum(axis=-1, keepdims=True)
        if whole.max() <= 1:
            return np.zeros_like(busy)  # phases keep all exchanges apart, the usual case
        others = np.maximum(whole - busy, NOTHING)
        waits: Floats = np.maximum(whole - 1, 0.0) / others * (busy @ self._shared)
        return waits

    def _step_s(self, periods: Ints, waits: Floats | float) -> Floats:
        exchange_s = self._rtt_s + self._transfer_s * (1 + waits)
        if self._overlap:
            exchange_s = np.maximum(beside(self._compute_s, exchange_s) - self._round_s, 0.0)
        seconds: Floats = (self._round_s + exchange_s / periods) / self._mean_steps
        return seconds

    def candidates(self) -> Ints:
        """Return rows of periods: for each bound on the seconds of a step, every group's shortest period within it."""
        each = self._step_s(PERIODS[:, None], 0.0)  # (periods, groups), falling in each column
        bounds = each[each >= each[-1].max()]
        first = (each <= bounds[:, None, None]).argmax(axis=1)
        rows: Ints = PERIODS[first]
        return rows

    def best(self) -> Ints:
        """Return the periods of least cost among those that `schedule` tries."""
        rows, best, cost = self.candidates(), np.ones(len(self._groups), dtype=np.int64), inf
        while (costs := self.costs(rows)).min() < cost * (1 - NOTHING):
            least = int(costs.argmin())
            best, cost = rows[least], float(costs[least])
            rows = _one_changed(best)
        return best

    def costs(self, periods: Ints) -> Floats:
        """Return J of each row of periods."""
        drift = self._drift * ((periods * self._steps).sum(axis=-1) / len(self._groups))
        slowest = self._step_s(periods, self._waits(periods)).max(axis=-1)
        costs: Floats = slowest * (1 + self._skew + self._stale + drift)
        return costs

    def at(self, periods: Ints, staggered: bool = True) -> Schedule:
        """Return the schedule with these periods; if not `staggered`, all groups exchange at once."""
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
    """Return the rows of periods in which one period is doubled or halved."""
    each = np.eye(len(periods), dtype=np.int64)
    rows = np.concatenate([periods + each * periods, periods - each * (periods - periods // 2)])
    found: Ints = rows[((rows >= PERIODS[0]) & (rows <= PERIODS[-1])).all(axis=1)]
    return found
