"""A plan in larger chunks: its rounds take about as long, and are simulated sooner."""

from __future__ import annotations

from dataclasses import replace

from testbed.plan import Plan

#: Chunks times hops of a round, at 2 µs each.
HOPS = 5_000


def coarse(plan: Plan, model_bytes: int, most: float = HOPS) -> Plan:
    """The plan itself, or with so few chunks that at most so many chunks times hops are simulated in a round."""
    hops = max(sum(plan.trees[tree].share for _, _, tree in plan.edges()), 1.0)
    return in_chunks(plan, model_bytes, most / hops)


def in_chunks(plan: Plan, model_bytes: int, most: float) -> Plan:
    """The plan itself, or with chunks so large that a model has no more than `most` of them."""
    return replace(plan, chunk_bytes=max(plan.chunk_bytes, _whole(model_bytes / most)))


def _whole(size: float) -> int:
    """A multiple of eight bytes, which is what chunks are."""
    return int(-(-size // 8)) * 8
