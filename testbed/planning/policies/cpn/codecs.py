"""Through which codec groups exchange: the one with the least cost, and a weaker one where a link carries more anyway.

A codec makes an exchange's bytes fewer, and a step worth a little less: what it leaves out comes later. So the cost J
chooses: plain while exchanges are short beside the steps, stronger the slower the links are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from testbed.plan import PLAIN_CODEC, Plan
from testbed.planning.view import View


@dataclass(frozen=True, slots=True)
class Thinning:
    """A codec, the part of float32's bytes that it leaves, and what a step is worth less through it."""

    codec: str
    part: float
    price: float


#: From the weakest to the strongest. Prices are ours: errors are sent afterwards, so little is lost.
LADDER = (Thinning(PLAIN_CODEC, 1.0, 0.0), Thinning("bf16", 0.5, 0.02), Thinning("int8", 1.016 / 4, 0.05))


def thinning(plan: Plan) -> Thinning:
    """The strongest codec of the ladder that a plan has between its groups."""
    used = set(plan.link_codecs.values())
    return next((rung for rung in reversed(LADDER) if rung.codec in used), LADDER[0])


def with_codecs(plan: Plan, view: View, chosen: Thinning) -> Plan:
    """The plan with a codec for each edge between groups: the weakest with which it takes no longer than the slowest
    edge through the `chosen`. (A tree's means are encoded once, by the strongest codec that they pass.)"""
    number = {member: k for k, group in enumerate(plan.groups) for member in group.members}
    rates = {(u, v): view.edges[u, v].rate_bps for u, v, _ in plan.edges() if number[u] != number[v]}
    slowest = min(rates.values()) / chosen.part
    links = {
        "->".join(pair): next(rung.codec for rung in LADDER if rung is chosen or rates[pair] / rung.part >= slowest)
        for pair in sorted(rates)
    }
    return replace(plan, link_codecs={link: codec for link, codec in links.items() if codec != PLAIN_CODEC})
