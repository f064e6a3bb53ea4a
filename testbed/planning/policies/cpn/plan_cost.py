"""The cost J of a plan with groups, and the codecs through which its groups exchange.

All groups of a plan exchange in the same rounds and continue together. A round therefore takes as long as the slowest
group does, and J counts its seconds per local step, with h̄ the members' mean number of steps [ours]:

    J = ((τ − 1)·max_k T_k + X)/(τ·h̄) · (1 + λ1·mean skew_k + λ3·τ·h̄) · (1 + price of the codec)

T = compute + ring inside a group, X = compute + the predicted seconds of the trees among all. Where rounds overlap the
next round's steps, the sum is replaced by the longer of the two plus a tenth of the shorter.

A codec reduces the bytes of an exchange, and makes a step worth a little less, because the rest is sent later. So J
chooses the codec: none while exchanges are short beside the steps, a stronger one the slower the links are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed.plan import PLAIN_CODEC, Plan
from testbed.planning.cost import predict
from testbed.planning.policies.cpn.schedule import Prices, beside
from testbed.planning.policies.cpn.terms import Terms
from testbed.planning.view import View


@dataclass(frozen=True, slots=True)
class PricedCodec:
    """A codec and its effect on J."""

    codec: str
    #: The part of float32's bytes that the codec sends.
    part: float
    #: The part by which a step is worth less through the codec.
    price: float


#: From the weakest codec to the strongest. The prices are our estimates, from no paper and from no measurement: error
#: feedback sends the rest later, so little is lost.
CODECS = (PricedCodec(PLAIN_CODEC, 1.0, 0.0), PricedCodec("bf16", 0.5, 0.02), PricedCodec("int8", 1.016 / 4, 0.05))


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost J of plans with these groups."""

    groups: Sequence[Terms]
    prices: Prices

    def per_step(self, period: int, exchange_s: float, through: PricedCodec) -> float:
        """Return J in seconds per local step, if all groups exchange in every `period`-th round."""
        count = sum(len(group.ring) for group in self.groups)
        steps = sum(len(group.ring) * group.steps for group in self.groups) / count
        inside = max(self._both(group.compute_s, group.ring_s) for group in self.groups)
        among = self._both(max(group.compute_s for group in self.groups), exchange_s)
        skew = self.prices.skew * sum(group.skew for group in self.groups) / len(self.groups)
        seconds = (inside * (period - 1) + among) / period if period > 1 else among  # `inside` may be infinite
        return seconds / steps * (1 + skew + self.prices.drift * period * steps) * (1 + through.price)

    def _both(self, compute_s: float, reduce_s: float) -> float:
        return float(beside(compute_s, reduce_s)) if self.prices.overlap else compute_s + reduce_s


def exchange_s(plan: Plan, view: View, through: PricedCodec) -> float:
    """Return the predicted seconds of a round of all members, whose bytes go through the codec `through`."""
    return predict(plan, replace(view, model_bytes=max(1, round(view.model_bytes * through.part)))).seconds


def strongest_codec(plan: Plan) -> PricedCodec:
    """Return the strongest of CODECS that a plan has between its groups."""
    used = set(plan.link_codecs.values())
    return next((codec for codec in reversed(CODECS) if codec.codec in used), CODECS[0])


def with_codecs(plan: Plan, view: View, chosen: PricedCodec) -> Plan:
    """Return the plan with a codec for each edge between groups.

    An edge gets the weakest codec through which it is no slower than the slowest edge through the `chosen` codec. (A
    tree's means are encoded once, by the strongest codec on their path.)
    """
    number = {member: k for k, group in enumerate(plan.groups) for member in group.members}
    rates = {(u, v): view.edges[u, v].rate_bps for u, v, _ in plan.edges() if number[u] != number[v]}
    slowest = min(rates.values()) / chosen.part
    links = {
        "->".join(pair): next(each.codec for each in CODECS if each is chosen or rates[pair] / each.part >= slowest)
        for pair in sorted(rates)
    }
    return replace(plan, link_codecs={link: codec for link, codec in links.items() if codec != PLAIN_CODEC})
