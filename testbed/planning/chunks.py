"""The size of a plan's chunks: chosen for a round, and made larger for a simulation that takes less time.

A deep pipe fills chunk by chunk, so small chunks shorten a round; each chunk costs a header and a turn of the
members' threads, so large ones spare the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.plan import Plan, Tree
from testbed.planning.cost import CostModel
from testbed.planning.view import View

#: Chunk sizes in bytes that a plan may have, the largest first.
SIZES = (256 * 1024, 128 * 1024, 64 * 1024, 32 * 1024, 16 * 1024)

#: The part of a round that the chunks' own transmission may add. Optimal packing of 10.9 MB over nine sites: 31 % at
#: 256 KiB, 9 % at 64 KiB, 5 % at 32 KiB.
TOLERATED = 0.03

#: The most chunks times hops that `coarse` leaves to simulate in a round; each takes 2 µs.
HOPS = 5_000


def choose_chunk(view: View, trees: Sequence[Tree]) -> int:
    """Return the largest of SIZES that adds at most TOLERATED to a round with vanishing chunks, else the smallest."""
    model = CostModel(view)
    vanishing = Plan(0, view.names, tuple(trees), chunk_bytes=1024)
    ideal = model.predict(vanishing).seconds
    for size in SIZES:
        if model.predict(replace(vanishing, chunk_bytes=size)).seconds <= ideal * (1 + TOLERATED):
            return size
    return SIZES[-1]


def coarse(plan: Plan, model_bytes: int, most: float = HOPS) -> Plan:
    """Return the plan with chunks so large that a round has at most `most` chunks times hops.

    Its rounds take about as long as the plan's, and are simulated sooner.
    """
    hops = max(sum(plan.trees[tree].share for _, _, tree in plan.edges()), 1.0)
    return in_chunks(plan, model_bytes, most / hops)


def in_chunks(plan: Plan, model_bytes: int, most: float) -> Plan:
    """Return the plan with chunks so large that a model has at most `most` of them."""
    least = int(-(-(model_bytes / most) // 8)) * 8  # chunks are multiples of eight bytes
    return replace(plan, chunk_bytes=max(plan.chunk_bytes, least))
