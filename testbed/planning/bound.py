"""The bound: the least time of a round that any set of trees reaches. What every policy is reported against; pages show
first what knows of delays and computing too, `period`.

Exact for schemes that reduce each element at one root (`pack` derives it), latency left out, header bytes counted by
the factor 1448/1514, so that a real run can come near it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed.errors import BAD_INPUT
from testbed.planning.constraints import Constraints
from testbed.planning.overlay import DirectedTree, Overlay
from testbed.planning.pack import Packed, pack
from testbed.planning.program import PackingError
from testbed.planning.view import View

#: Members for whom the bound is solved each time that it is of use: 40 take seconds on a network whose rates change.
MOST_BOUNDED = 64


class BoundError(ValueError):
    """No plan exists under the view, whose edges connect no member with all others in both directions; or none was
    found."""

    exit_code = BAD_INPUT


@dataclass(frozen=True, slots=True)
class Bound:
    """`rate_bps` is the most payload bit/s all-reduced; `seconds` what model_bytes take at that rate.

    A plan is known that comes as near as `gap` to the rate (1.0 = it reaches half of it): the trees of `packed`, none
    for a member alone.
    """

    seconds: float
    rate_bps: float
    gap: float = 0.0
    packed: Packed | None = field(default=None, repr=False, compare=False)


def bound(view: View, last: Bound | None = None) -> Bound:
    """The bound of a view. BoundError when it has no plan at all, or none is found. 16 members on a dense
    network: about 0.3 s.

    The search begins with the trees of the `last` bound, if there is one: where capacities changed by some percent
    since, it takes a tenth of the time, and the bound is the same within what `pack` is exact to.
    """
    if len(view.members) == 1:
        return Bound(0.0, float("inf"))
    overlay = Overlay(view.names, Constraints.of(view))
    try:
        packed = pack(overlay, known=_carrying(last.packed, overlay) if last and last.packed else ())
    except PackingError as error:
        raise BoundError(str(error)) from error
    return Bound(8 * view.model_bytes / packed.upper_bps, packed.upper_bps, packed.gap, packed)


def _carrying(packed: Packed, overlay: Overlay) -> list[DirectedTree]:
    """The trees that carry something, as far as the overlay has them."""
    if packed.overlay.members != overlay.members:
        return []
    carrying = [tree for tree, rate in zip(packed.trees, packed.rates_bps, strict=True) if rate > 0]
    return [
        overlay.directed_tree(tree.root, tree.outward, tree.parents)
        for tree in carrying
        if overlay.has(tree.root, tree.outward, tree.parents)
    ]
