"""The lower bound of a round's time from end to end, with compute, delays and rates. What pages show first.

It is for synchronous schemes without compression: a member computes when it has the last round's mean, whole, and sends
nothing of a round before it has computed. Write c_j for how long j computes, M for the model's payload, d(j, i) for the
least delay from j to i over links that routes string together, with members as relays, F(j, i) for the greatest flow
there, and e_i(k) for when i has the mean of round k. Three things hold.

**Every mean needs every member.** e_i(k) ≥ e_j(k−1) + w(j, i), w(j, i) = c_j + d(j, i) + M / F(j, i), w(i, i) = c_i.
For each element, j's gradient comes to i, as it is or within a sum, along some way; say that j begins to send at 0 and
i has all at S. What goes over a link enters it no earlier than the least delay from j to there, and early enough for
the least delay from there to i; the two are at least d(j, i), as the one way and the other make a way from j to i. So
each link passes all that goes over it within S − d(j, i), whatever the chunks and their order. The elements' ways,
divided by that time, are a flow from j to i that no link is too slow for: M / (S − d(j, i)) ≤ F(j, i).

**Around a cycle.** Go around a cycle of L members, a round each, for K rounds: the last e is at least the sum of K
weights. Of the L members to begin with the best does as well as their average, K times the cycle's mean weight. So the
mean period is at least the mean weight of any cycle. Where computing takes longer in one round than in another the sum
is the same, with its mean over the rounds in place of c_j.

**There and back.** Plans reduce each element at one member, which is r as long as the plan is in force. No member j has
the mean of that element earlier than d(j, r) + d(r, j) after it sent its own: the period is at least
c_j + d(j, r) + d(r, j) for all j, and least where r is placed best.

And it is at least `bound`, since each round's bytes have to pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, pairwise

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra, maximum_flow

from testbed.planning.bound import Bound, bound
from testbed.planning.constraints import Constraints
from testbed.planning.overlay import Floats
from testbed.planning.view import View

#: The greatest flow that SciPy counts. Rates are counted in such units that all of them together stay below.
MOST_UNITS = 2**31 - 1


def least_period(view: View, compute_s: Mapping[str, float] | None = None, known: Bound | None = None) -> float:
    """The lower bound of a round's mean time, members computing for `compute_s` (0 by default) in each.

    `known` is the view's bound, if it was solved before. BoundError when the view has no plan at all. 9 members:
    0.02 s and what `bound` takes; GÉANT's 40: 2 s.
    """
    least = (known or bound(view)).seconds
    delay_s, rate_bps = _ways(view)
    own_s = np.array([(compute_s or {}).get(name, 0.0) for name in view.names])
    passed_on = own_s[:, None] + delay_s + 8 * view.model_bytes / rate_bps
    and_back = own_s[:, None] + delay_s + delay_s.T
    return max(least, greatest_cycle_mean(passed_on), float(and_back.max(axis=0).min()))


def greatest_cycle_mean(weights: Floats) -> float:
    """Of all cycles the greatest mean of weights[from, to], by Karp's theorem (1978).

    With heaviest[k, v] for the walk of k steps from anywhere to v that weighs most, it is the greatest over v of the
    least over k < n of (heaviest[n, v] − heaviest[k, v]) / (n − k).
    """
    count = len(weights)
    heaviest = np.zeros((count + 1, count))
    for steps in range(count):
        heaviest[steps + 1] = (heaviest[steps, :, None] + weights).max(axis=0)
    steps_left = np.arange(count, 0, -1)
    return float(((heaviest[-1] - heaviest[:-1]) / steps_left[:, None]).min(axis=0).max())


def _ways(view: View) -> tuple[Floats, Floats]:
    """The least delay [from, to] and the greatest flow (payload bit/s) between members, a member itself 0 and infinite.

    In one graph: a link, or what else limits an edge, is an arc; arcs without limits lead to it from members and from
    the links before it on a route. Flows are a trifle too great, for they are counted in whole units.
    """
    limits, members = Constraints.of(view), len(view.members)
    delays = {name: view.links[name].delay_s for name in limits.goodput_bps if name in view.links}
    delays |= {drawn[0]: view.edge_delay(*pair) for pair, drawn in limits.drawn.items() if not view.routes.get(pair)}
    names = sorted(set(chain.from_iterable(limits.drawn.values())))
    enter = {name: members + 2 * k for k, name in enumerate(names)}
    member = {name: m for m, name in enumerate(view.names)}
    arcs = {(enter[name], enter[name] + 1): (delays.get(name, 0.0), limits.goodput_bps[name]) for name in names}
    for (source, target), drawn in limits.drawn.items():
        ends = (member[source], *chain.from_iterable((enter[name], enter[name] + 1) for name in drawn), member[target])
        arcs |= {arc: (0.0, np.inf) for arc in pairwise(ends) if arc not in arcs}
    if not arcs:
        return np.zeros((members, members)), np.full((members, members), np.inf)
    source, target = np.array(list(arcs)).T
    delay, rate = np.array(list(arcs.values())).T
    shape = (members + 2 * len(names),) * 2
    unit_bps = sum(limits.goodput_bps[name] for name in names) / (MOST_UNITS - 2 * len(names))
    units = np.minimum(np.ceil(rate / unit_bps), MOST_UNITS).astype(np.int32)
    carries = csr_array((units, (source, target)), shape)
    delay_s = dijkstra(csr_array((delay, (source, target)), shape), indices=range(members))[:, :members]
    flow = np.full((members, members), np.inf)
    for a, b in np.argwhere(~np.eye(members, dtype=bool)):
        flow[a, b] = maximum_flow(carries, a, b).flow_value * unit_bps
    return delay_s, flow
