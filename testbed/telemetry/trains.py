"""Trains: stretches in which an edge always had more to send. What a path carried then is what it carries.

ticks of an edge    ########## . #######################  . . ##         # busy for all of the tick
acknowledged        ..xxxxxxxx   .xxxxxxxxxx......xxxxxx        x        . nothing, x something
its trains             [-----]     [-------]       [---]

What was acknowledged in the first ticks of a stretch was sent before it, or over a part of the tick only; where nothing
is for long the path was away, and what comes next is TCP finding its way again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

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

#: Busy ticks in a row without any acknowledgement that mean that the path was away: TCP's least timeout is 200 ms.
STALLED_TICKS = 5

#: A train's ticks by number.
Train = tuple[int, ...]


def trains(ticks: Sequence[Tick]) -> list[Train]:
    """The trains in an edge's ticks, which are in order."""
    return [train for busy in _busy(ticks) for flow in _flows(busy) for train in _cut(flow)]


def _busy(ticks: Iterable[Tick]) -> Iterator[list[Tick]]:
    """Busy ticks in a row."""
    open_: list[Tick] = []
    for tick in ticks:
        busy = tick.busy_ms >= BUSY * 1e3 * TICK_S
        if open_ and (not busy or tick.number != open_[-1].number + 1):
            yield open_
            open_ = []
        if busy:
            open_.append(tick)
    yield open_


def _flows(busy: Iterable[Tick]) -> Iterator[list[Tick]]:
    """Parts of busy ticks in which the path took bytes: each from the tick after its first acknowledgements on."""
    open_: list[Tick] | None = None
    silent = 0
    for tick in busy:
        silent = 0 if tick.bytes else silent + 1
        if open_ is not None:
            open_.append(tick)
        elif tick.bytes:
            open_ = []
        if open_ and silent == STALLED_TICKS:
            yield open_[:-silent]
            open_ = None
    yield open_ or []


def _cut(flow: Sequence[Tick]) -> Iterator[Train]:
    open_: list[int] = []
    carried = 0
    for tick in flow:
        open_.append(tick.number)
        carried += tick.bytes
        if len(open_) == TRAIN_TICKS or (carried >= TRAIN_BYTES and len(open_) >= LEAST_TICKS):
            yield tuple(open_)
            open_, carried = [], 0
    if len(open_) >= LEAST_TICKS:
        yield tuple(open_)


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
