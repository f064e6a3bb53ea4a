"""When BBR sends next to nothing: it looks at the round trip now and then, over a path that it keeps empty for that.

    opened |---------- 10 s ----------|looks|---------- 10 s ----------|looks|

On six members a round of 0.91 s became one of 1.25 s every 10.5 s, which is 4 % of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import floor, isfinite

from testbed.planning import Pair
from testbed.simulation.underlay import UnderlayState

#: The kernel's: so long the least round trip is believed, and so long, and a round trip, four packets are on their way.
BELIEVED_S, LOOKS_S = 10.0, 0.2


@dataclass(frozen=True, slots=True)
class Pause:
    """A connection that sends nothing for a while."""

    pair: Pair
    began_s: float
    ended_s: float


class BbrConnections:
    """The connections of a run under BBR; each is opened when a round first needs it."""

    def __init__(self) -> None:
        self._opened_s: dict[Pair, float] = {}

    def pauses(self, pairs: Iterable[Pair], state: UnderlayState, from_s: float, until_s: float) -> Iterator[Pause]:
        """Those of these connections that fall into a time."""
        for pair in pairs:
            opened_s = self._opened_s.setdefault(pair, from_s)
            lasts_s = LOOKS_S + state.delay_s(*pair) + state.delay_s(*reversed(pair))
            if not isfinite(lasts_s):
                continue
            cycle_s = BELIEVED_S + lasts_s
            for number in range(floor((from_s - opened_s) / cycle_s), floor((until_s - opened_s) / cycle_s) + 1):
                ended_s = opened_s + (number + 1) * cycle_s
                if number >= 0 and ended_s > from_s:
                    yield Pause(pair, ended_s - lasts_s, ended_s)
