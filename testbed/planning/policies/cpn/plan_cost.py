"""What a plan costs: the J of its groups, with exchanges as long as its trees are predicted to take.

All groups of a plan exchange in the same rounds, and go on together. So a round lasts as long as at the slowest group,
and J counts its seconds per local step of the members' mean h̄:

    J = ((τ − 1)·max_k T_k + X)/(τ·h̄) · (1 + λ1·mean skew_k + λ3·τ·h̄) · (1 + price of the codec)

T = compute + ring inside a group, X = compute + the trees' seconds among all; where rounds go on beside the next one's
steps, the longer of the two and a tenth of the shorter instead of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed.plan import Plan
from testbed.planning.cost import predict
from testbed.planning.policies.cpn.codecs import Thinning
from testbed.planning.policies.cpn.schedule import BESIDE, Prices
from testbed.planning.policies.cpn.terms import Terms
from testbed.planning.view import View


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of plans with these groups."""

    groups: Sequence[Terms]
    prices: Prices

    def per_step(self, period: int, exchange_s: float, through: Thinning) -> float:
        """J in seconds per local step, when all exchange in every `period`-th round."""
        count = sum(len(group.ring) for group in self.groups)
        steps = sum(len(group.ring) * group.steps for group in self.groups) / count
        inside = max(self._both(group.compute_s, group.ring_s) for group in self.groups)
        among = self._both(max(group.compute_s for group in self.groups), exchange_s)
        skew = self.prices.skew * sum(group.skew for group in self.groups) / len(self.groups)
        seconds = (inside * (period - 1) + among) / period
        return seconds / steps * (1 + skew + self.prices.drift * period * steps) * (1 + through.price)

    def _both(self, compute_s: float, reduce_s: float) -> float:
        if not self.prices.overlap:
            return compute_s + reduce_s
        return max(compute_s, reduce_s) + BESIDE * min(compute_s, reduce_s)


def exchange_s(plan: Plan, view: View, through: Thinning) -> float:
    """Seconds of a round among all under a plan, with its bytes as a codec makes them."""
    return predict(plan, replace(view, model_bytes=max(1, round(view.model_bytes * through.part)))).seconds
