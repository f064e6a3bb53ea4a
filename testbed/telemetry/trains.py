"""The rate that a link carried while a train passed it: the train's bytes, and those of other trains at that time.

a -- x -- b     trains arrive at b and at c; they passed a-x earlier, by the delay of the links after it
      `-- c
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.protocol import Train

#: The sender and the receiver of an overlay edge.
Pair = tuple[str, str]

Floats = NDArray[np.float64]

#: No trains.
NOTHING: Mapping[Pair, Sequence[Train]] = {}

#: Bits of frames per byte of payload.
FRAME_BITS = 8 * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class Sample:
    """The rate at which one train passed a link."""

    #: Bit/s of frames.
    rate_bps: float
    #: When the train's first packet arrived (Unix time).
    began_s: float
    seconds: float
    #: Bytes of the train.
    bytes: int
    #: Whether the train filled the link: a full link carries no more than this rate, any other at least this rate.
    full: bool

    @property
    def ended_s(self) -> float:
        """The time at which the train's last packet arrived (Unix time)."""
        return self.began_s + self.seconds


class Carried:
    """A running total over time: the payload bytes that an edge's packet trains have delivered."""

    def __init__(self, trains: Sequence[Train]) -> None:
        order = sorted(trains)
        times, total = [-np.inf], [0.0]
        for train in order:
            # Trains of several connections may overlap; their bytes then count one after the other.
            began_s = max(train.began_s, times[-1])
            times += [began_s, max(train.began_s + train.seconds, began_s)]
            total += [total[-1], total[-1] + train.bytes]
        self._times = np.array([*times[1:], np.inf] if order else [0.0])
        self._total = np.array([*total[1:], total[-1]] if order else [0.0])

    def by(self, times: Floats) -> Floats:
        """Return the total of the bytes that had arrived by each of these times (Unix time)."""
        found: Floats = np.interp(times, self._times, self._total)
        return found


def passed_bps(
    trains: Mapping[Pair, Sequence[Train]],
    routes: Mapping[Pair, Sequence[str]],
    delay_s: Mapping[str, float],
    other_trains: Mapping[Pair, Sequence[Train]] = NOTHING,
) -> dict[tuple[Pair, str], Floats]:
    """Return the bit/s of frames that links carried while trains passed them: by (edge, link), one rate for each train.

    Args:
        trains: The trains of each edge.
        routes: The links of each edge, in order.
        delay_s: The one-way delay of each link in seconds; 0 for a link that is not named.
        other_trains: Earlier and later trains of each edge, whose bytes links carried too.
    """
    trains = {pair: its for pair, its in trains.items() if its}
    whole = {pair: [*trains.get(pair, ()), *other_trains.get(pair, ())] for pair in {**trains, **other_trains}}
    users: dict[str, list[Pair]] = {}
    for pair in whole:
        for link in routes[pair]:
            users.setdefault(link, []).append(pair)
    carried = {pair: Carried(its) for pair, its in whole.items()}
    beyond = {pair: _beyond(routes[pair], delay_s) for pair in whole}
    found = {}
    for pair, its in trains.items():
        began = np.array([train.began_s for train in its])
        seconds = np.array([train.seconds for train in its])
        own = np.array([float(train.bytes) for train in its])
        for link in routes[pair]:
            total = own.copy()
            for other in users[link]:
                if other != pair:
                    shift = beyond[other][link] - beyond[pair][link]
                    total += carried[other].by(began + seconds + shift) - carried[other].by(began + shift)
            found[pair, link] = total / seconds * FRAME_BITS
    return found


def _beyond(route: Sequence[str], delay_s: Mapping[str, float]) -> dict[str, float]:
    """Return link → the delay from the link's end to the end of the route, in seconds."""
    beyond, left = {}, 0.0
    for link in reversed(route):
        beyond[link] = left
        left += delay_s.get(link, 0.0)
    return beyond
