"""Trains: stretches in which an edge always had something to send. What a path carried then is what it carries.

ticks of an edge    ######## . #####################  . . ##          # busy for all of the tick
its trains          [------]   [-------][-------][-]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.protocol import TICK_S, Tick

#: A train ends when it has carried so much or lasted so long, whichever is first. Of trains of 64 to 384 KiB those of
#: 192 came nearest to the truth (NetStorm's nine sites at 4 to 31 Mbit/s, 1,100 rounds of an edge: 4 % off at the
#: median): acknowledgements come in bursts, and short trains take those for speed.
TRAIN_BYTES = 192 * 1024
TRAIN_TICKS = 8

#: A shorter one says too little, however much it carried.
LEAST_TICKS = 2

#: A tick counts when the edge was busy for this part of it.
BUSY = 0.9

#: A train's ticks by number.
Train = tuple[int, ...]


def trains(ticks: Sequence[Tick]) -> list[Train]:
    """The trains in an edge's ticks, which are in order."""
    found: list[Train] = []
    open_: list[int] = []
    carried = 0
    for tick in ticks:
        busy = tick.busy_ms >= BUSY * 1e3 * TICK_S
        if open_ and (not busy or tick.number != open_[-1] + 1):
            found.append(tuple(open_))
            open_, carried = [], 0
        if busy:
            open_.append(tick.number)
            carried += tick.bytes
        if len(open_) == TRAIN_TICKS or (carried >= TRAIN_BYTES and len(open_) >= LEAST_TICKS):
            found.append(tuple(open_))
            open_, carried = [], 0
    found.append(tuple(open_))
    return [train for train in found if len(train) >= LEAST_TICKS]


def load(edges: Iterable[Sequence[Tick]]) -> dict[int, int]:
    """Bytes by tick of all edges together."""
    total: dict[int, int] = {}
    for ticks in edges:
        for tick in ticks:
            total[tick.number] = total.get(tick.number, 0) + tick.bytes
    return total


def rate_bps(train: Train, carried: Mapping[int, int]) -> float:
    """Bit/s of frames over a train."""
    payload = sum(carried.get(number, 0) for number in train)
    return 8 * payload / (len(train) * TICK_S) * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES
