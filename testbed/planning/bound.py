"""Two lower bounds: of the time of a round by rates alone, and of the period of rounds with delays and computing.

Every policy is reported against the first, `bound`. It is exact for schemes that reduce each element at one root
(`pack` derives it), leaves latency out, and counts header bytes by the factor 1448/1514, so that a real run can come
near it. Pages show the second, `least_period`, first.

The derivation of `least_period` [ours] holds for synchronous schemes without compression: a member computes once it has
the whole mean of the last round, and sends nothing of a round before it has computed. Let c_j be the time that member j
computes, M the model's payload, d(j, i) the least delay from j to i over the links of routes, with members as relays
between routes, F(j, i) the greatest flow from j to i, and e_i(k) the moment at which i has the mean of round k.
Three statements hold.

**Every mean needs every member.** e_i(k) ≥ e_j(k−1) + w(j, i), w(j, i) = c_j + d(j, i) + M / F(j, i), w(i, i) = c_i.
Each element of j's gradient reaches i along some path, alone or within a sum. Let j begin to send at 0 and i have all
elements at S. An element enters a link no earlier than the least delay from j to the link, and leaves time for the
least delay from the link to i; the sum of both is at least d(j, i), because the two paths together lead from j to i. So
every link passes its elements within S − d(j, i), whatever the chunks and their order. The elements' paths, divided by
that time, are a flow from j to i that exceeds no link's rate: M / (S − d(j, i)) ≤ F(j, i).

**Cycles.** Follow a cycle of L members, one member a round, for K rounds: the last e is at least the sum of K weights.
The best of the L first members does at least as well as their average, which is K times the cycle's mean weight. So the
mean period is at least the mean weight of any cycle. If computing takes longer in some rounds, the sum is the same with
the mean over the rounds as c_j.

**Round trips.** A plan reduces each element at one member r. No member j has the mean of that element earlier than
d(j, r) + d(r, j) after it sent its own element. So the period is at least c_j + d(j, r) + d(r, j) for all j, for the
best placed r.

And the period is at least `bound`, because each round's bytes have to pass the links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra, maximum_flow

from testbed.errors import BAD_INPUT
from testbed.planning.constraints import Constraints, Floats
from testbed.planning.overlay import DirectedTree, Overlay
from testbed.planning.pack import Packed, PackingError, pack
from testbed.planning.view import View

#: The most members for which runs and pages solve the bound: for 40 it takes seconds on a network whose rates change.
MOST_BOUNDED = 64

#: The greatest flow that SciPy counts. Rates are counted in a unit that keeps the sum of all rates below it.
MOST_UNITS = 2**31 - 1


class BoundError(ValueError):
    """A view has no plan: no member is connected with all others in both directions, or the solver found none."""

    exit_code = BAD_INPUT


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time of a round, and the trees that come near it."""

    #: Seconds of a round at `rate_bps`.
    seconds: float
    #: The most payload that trees can all-reduce, bit/s.
    rate_bps: float
    #: The part by which `rate_bps` may exceed the rate of the known trees (1.0: they reach half of it).
    gap: float = 0.0
    #: The known trees; None for a member alone.
    packed: Packed | None = field(default=None, repr=False, compare=False)


def bound(view: View, last: Bound | None = None) -> Bound:
    """Return the least time that a round can take under any plan, and the trees that come near it.

    The search takes about 0.3 s for 16 members on a dense network.

    Args:
        view: The network.
        last: An earlier bound, with whose trees the search begins. If capacities have changed by some percent since,
            the search takes a tenth of the time; the bound is the same to the accuracy of `pack`.

    Raises:
        BoundError: The view has no plan, or the solver found none.
    """
    if len(view.members) == 1:
        return Bound(0.0, float("inf"))
    overlay = Overlay(view.names, Constraints.of(view))
    try:
        packed = pack(overlay, known=_reusable(last.packed, overlay) if last and last.packed else ())
    except PackingError as error:
        raise BoundError(str(error)) from error
    return Bound(8 * view.model_bytes / packed.upper_bps, packed.upper_bps, packed.gap, packed)


def _reusable(packed: Packed, overlay: Overlay) -> list[DirectedTree]:
    """Return the packed trees with a rate above 0 whose edges are all in `overlay`."""
    if packed.overlay.members != overlay.members:
        return []
    carrying = [tree for tree, rate in zip(packed.trees, packed.rates_bps, strict=True) if rate > 0]
    return overlay.present_trees((tree.root, tree.outward, tree.parents) for tree in carrying)


def least_period(view: View, compute_s: Mapping[str, float] | None = None, known: Bound | None = None) -> float:
    """Return the lower bound of the mean period of rounds, in seconds.

    Nine members take 0.02 s beside the time of `bound`, GÉANT's 40 take 2 s.

    Args:
        view: The network.
        compute_s: Seconds that each member computes in a round; 0 for a member that is not named.
        known: The view's bound, if it was solved before.

    Raises:
        BoundError: The view has no plan.
    """
    least = (known or bound(view)).seconds
    delay_s, rate_bps = _delays_and_flows(view)
    own_s = np.array([(compute_s or {}).get(name, 0.0) for name in view.names])
    passed_on = own_s[:, None] + delay_s + 8 * view.model_bytes / rate_bps
    and_back = own_s[:, None] + delay_s + delay_s.T
    return max(least, greatest_cycle_mean(passed_on), float(and_back.max(axis=0).min()))


def greatest_cycle_mean(weights: Floats) -> float:
    """Return the greatest mean weight of a cycle, by Karp's theorem (1978).

    Let heaviest[k, v] be the weight of the heaviest walk of k steps that ends at v. The result is the maximum over v of
    the minimum over k < n of (heaviest[n, v] − heaviest[k, v]) / (n − k).

    Args:
        weights: The weight of each edge at [from, to], shape (n, n).
    """
    count = len(weights)
    heaviest = np.zeros((count + 1, count))
    for steps in range(count):
        heaviest[steps + 1] = (heaviest[steps, :, None] + weights).max(axis=0)
    steps_left = np.arange(count, 0, -1)
    return float(((heaviest[-1] - heaviest[:-1]) / steps_left[:, None]).min(axis=0).max())


def _delays_and_flows(view: View) -> tuple[Floats, Floats]:
    """Return the least delay in seconds and the greatest flow in payload bit/s between members, each (n, n).

    Rows are senders. Delays and flows are those of one graph: every capacity is an arc, and arcs without limits lead to
    it from members and from the capacities before it on a route. Flows are slightly too great, because they count whole
    units. From a member to itself the delay is 0 and the flow infinite.
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
