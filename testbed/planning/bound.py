"""The bound: the least time of a round that any set of trees reaches. Every policy is reported against it.

The bound is exact for schemes that reduce each element at one root (`pack` derives it). It leaves latency out (`period`
has the bound with delays and computing, which pages show first), and counts header bytes by the factor 1448/1514, so
that a real run can come near it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed.errors import BAD_INPUT
from testbed.planning.constraints import Constraints
from testbed.planning.overlay import DirectedTree, Overlay
from testbed.planning.pack import Packed, pack
from testbed.planning.program import PackingError
from testbed.planning.view import View

#: The most members for which runs and pages solve the bound: for 40 it takes seconds on a network whose rates change.
MOST_BOUNDED = 64


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
    """Return the bound of a view. 16 members on a dense network take about 0.3 s.

    Args:
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
    return [
        overlay.directed_tree(tree.root, tree.outward, tree.parents)
        for tree in carrying
        if overlay.has(tree.root, tree.outward, tree.parents)
    ]
