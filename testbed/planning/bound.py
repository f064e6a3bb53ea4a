"""The bound: the least time of a round that any set of trees reaches. What every policy is reported against; pages show
first what knows of delays and computing too, `period`.

Exact for schemes that reduce each element at one root (`pack` derives it), latency left out, header bytes counted by
the factor 1448/1514, so that a real run can come near it.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.planning.constraints import Constraints
from testbed.planning.overlay import Overlay
from testbed.planning.pack import PackingError, pack
from testbed.planning.view import View


class BoundError(ValueError):
    """No plan exists under the view: its edges connect no member with all others in both directions."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`rate_bps` is the most payload bit/s all-reduced; `seconds` what model_bytes take at that rate.

    A plan is known that comes as near as `gap` to the rate (1.0 = it reaches half of it).
    """

    seconds: float
    rate_bps: float
    gap: float = 0.0


def bound(view: View) -> Bound:
    """The bound of a view. BoundError when it has no plan at all. 16 members on a dense network: about 0.3 s."""
    if len(view.members) == 1:
        return Bound(0.0, float("inf"))
    try:
        packed = pack(Overlay(view.names, Constraints.of(view)))
    except PackingError as error:
        raise BoundError(str(error)) from error
    return Bound(8 * view.model_bytes / packed.upper_bps, packed.upper_bps, packed.gap)
