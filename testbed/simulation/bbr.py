"""The connections of a run under BBR: what each believes of its path (planning/bbr.h), from round to round; and when it
sends next to nothing, as it looks at the round trip now and then, over a path that it keeps empty for that.

    opened |---------- 10 s ----------|looks|---------- 10 s ----------|looks|

On six members a round of 0.91 s became one of 1.25 s every 10.5 s, which is 4 % of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, isfinite

import numpy as np

from testbed.planning import Pair
from testbed.planning.bbr import CONNECTION, Connections, opened
from testbed.simulation.network import NetworkState

#: The kernel's: so long the least round trip is believed, and so long, and a round trip, four packets are on their way.
BELIEVED_S, LOOKS_S = 10.0, 0.2


#: Of a row's fields these are moments.
MOMENTS = ("stopped_s", "began_s", "ends_s")

#: Of a path without delay: a queue's worth. Of one that leads nowhere: TCP's first guess.
LEAST_TRIP_S, NO_TRIP_S = 1e-3, 1.0


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
        self._rows: dict[tuple[Pair, int], Connections] = {}

    def rows(self, pairs: Sequence[Pair], state: NetworkState, from_s: float) -> Connections:
        """What flows between these pairs believe now, with times from that moment on. Those inside a site are none."""
        rows = np.zeros(len(pairs), CONNECTION)
        for f, key in enumerate(_keys(pairs)):
            source, target = key[0]
            if state.sites[source] == state.sites[target]:
                continue
            trip_s = state.delay_s(source, target) + state.delay_s(target, source)
            trip_s = max(trip_s, LEAST_TRIP_S) if isfinite(trip_s) else NO_TRIP_S
            rows[f] = self._rows[key][0] if key in self._rows else opened(trip_s)[0]
            rows["trip_s"][f] = trip_s
        for name in MOMENTS:
            rows[name] -= from_s
        return rows

    def keep(self, pairs: Sequence[Pair], rows: Connections, from_s: float) -> None:
        """What became of them in a simulation that began at that moment."""
        for name in MOMENTS:
            rows[name] += from_s
        self._rows |= {key: rows[f : f + 1] for f, key in enumerate(_keys(pairs)) if rows["trip_s"][f]}

    def pauses(self, pairs: Iterable[Pair], state: NetworkState, from_s: float, until_s: float) -> Iterator[Pause]:
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


def _keys(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, int]]:
    """Each of the flows: its pair, and the how many-th of that."""
    seen: Counter[Pair] = Counter()
    for pair in pairs:
        yield pair, seen[pair]
        seen[pair] += 1
