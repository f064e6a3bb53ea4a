"""The size of a plan's chunks.

A deep pipe fills chunk by chunk, so small chunks shorten a round; each chunk costs a header and a turn of the
members' threads, so large ones spare the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.plan import Plan, Tree
from testbed.planning.cost import CostModel
from testbed.planning.view import View

SIZES = (256 * 1024, 128 * 1024, 64 * 1024, 32 * 1024, 16 * 1024)

#: How much of a round the chunks' own transmission may add (optimal packing of 10.9 MB over nine sites: 31 % at
#: 256 KiB, 9 % at 64 KiB, 5 % at 32 KiB).
TOLERATED = 0.03


def choose_chunk(view: View, trees: Sequence[Tree]) -> int:
    """The largest of SIZES that adds at most TOLERATED to a round with vanishing chunks, else the smallest."""
    model = CostModel(view)
    vanishing = Plan(0, view.names, tuple(trees), chunk_bytes=1024)
    ideal = model.predict(vanishing).seconds
    for size in SIZES:
        if model.predict(replace(vanishing, chunk_bytes=size)).seconds <= ideal * (1 + TOLERATED):
            return size
    return SIZES[-1]
