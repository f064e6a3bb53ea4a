"""Background traffic as rates over time, and the rates that it leaves free on a link.

The traffic is a fluid: no packet of it exists, and it does not give way to others. A link's rate is what the traffic
leaves of its capacity.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush, merge
from itertools import groupby
from operator import itemgetter

from testbed.trace.resample import LEAST_BPS
from testbed.trace.trace import End, Row, Trace, TraceError, lasting

#: The least time that drawn traffic lasts before it begins again, longer than most runs. An hour of a hundred links
#: with a trace of 100 ms would be 3.6 million rows.
LASTS_S = 600.0
#: The most rows of all links of a network together: half a gigabyte, drawn in some ten seconds. A step without a row
#: takes as long.
MOST_ROWS = 3_000_000
#: The most flows under way at once in the mean. Each is drawn by itself.
MOST_FLOWS = 10_000
#: The largest share of a link's capacity that traffic takes. Real traffic is mostly TCP, which gives way.
MOST_SHARE = 0.95

#: A moment, and the rate that the traffic has from then on, in bit/s.
Change = tuple[float, float]


@dataclass(frozen=True, slots=True)
class OnOff:
    """A source that sends at one rate while it is busy, and nothing while it is idle, for exponential times.

    It begins busy with the probability that it is busy at any moment.
    """

    rate_bps: float
    busy_s: float
    idle_s: float

    def changes(self, draw: random.Random) -> Iterator[Change]:
        """Yield the begins and ends of busy times."""
        moment, busy = 0.0, draw.random() < self.busy_s / (self.busy_s + self.idle_s)
        while True:
            yield moment, self.rate_bps * busy
            moment += draw.expovariate(1 / (self.busy_s if busy else self.idle_s))
            busy = not busy


@dataclass(frozen=True, slots=True)
class PoissonFlows:
    """Flows that begin as a Poisson process; each sends an exponential number of bytes at one rate, then ends.

    At the beginning there are as many as at any moment: a Poisson number with the mean (time of a flow) / `every_s`.

    Raises:
        TraceError: This mean is over MOST_FLOWS.
    """

    rate_bps: float
    size_bytes: float
    every_s: float

    def __post_init__(self) -> None:
        if (flows := self.lasts_s / self.every_s) > MOST_FLOWS:
            raise TraceError(
                f"{flows:,.0f} flows are under way at once; write a smaller `size`, or a greater `rate` or `every`, "
                f"for at most {MOST_FLOWS:,}",
                rule="too-many",
                given=flows,
            )

    @property
    def lasts_s(self) -> float:
        """The mean time of a flow."""
        return self.size_bytes * 8 / self.rate_bps

    def changes(self, draw: random.Random) -> Iterator[Change]:
        """Yield the begins and ends of flows, with the rate of those that are under way."""
        lasts_s = self.lasts_s
        ends: list[float] = []
        arrival = draw.expovariate(lasts_s / self.every_s)
        while arrival < 1:
            heappush(ends, draw.expovariate(1 / lasts_s))
            arrival += draw.expovariate(lasts_s / self.every_s)
        yield 0.0, len(ends) * self.rate_bps
        begin = draw.expovariate(1 / self.every_s)
        while True:
            if ends and ends[0] <= begin:
                moment = heappop(ends)
            else:
                moment, begin = begin, begin + draw.expovariate(1 / self.every_s)
                heappush(ends, moment + draw.expovariate(1 / lasts_s))
            yield moment, len(ends) * self.rate_bps


@dataclass(frozen=True, slots=True)
class Volume:
    """Recorded traffic: the rates of a trace, and nothing once a trace that stops is over.

    Raises:
        TraceError: No row has a rate.
    """

    trace: Trace

    def __post_init__(self) -> None:
        if all(row.rate_bps is None for row in self.trace.rows):
            raise TraceError("the trace has no rates and would take nothing; write a trace with rates", rule="no-rates")

    def changes(self, draw: random.Random) -> Iterator[Change]:
        """Yield the trace's rates; a row that loses all packets carries nothing."""
        for moment, row in self.trace.changes():
            yield moment, 0.0 if row is None or row.loss == 1 else row.rate_bps or 0.0


#: Traffic whose `changes` yield each moment at which its rate changes, from 0 s on, with the rate from then on;
#: they may have no end.
Traffic = OnOff | PoissonFlows | Volume


def left_by(
    traffic: Sequence[tuple[Traffic, random.Random]], rate_bps: float, own: Trace | None, most_rows: int = MOST_ROWS
) -> Trace:
    """Return a link's trace with the rates that traffic leaves free.

    The trace is made of whole laps of the longest trace that loops, for LASTS_S at least, and then ends as the link's
    own trace does. Single opportunities to send become the rates that sum them up.

    Args:
        traffic: The traffic, and the random numbers that each is drawn with.
        rate_bps: The link's capacity where its trace says none.
        own: The link's trace, if it has one.
        most_rows: The most steps, of which rows are made, that the trace may have.

    Raises:
        TraceError: The trace would have more steps than that, or more than its time allows.
    """
    lasts_s, end = _length(own, [each.trace for each, _ in traffic if isinstance(each, Volume)])
    rows: list[Row] = []
    row, taken = Row(0.0), [0.0] * len(traffic)
    streams = [_own_rows(own, lasts_s), *(_taken(place, *each, lasts_s) for place, each in enumerate(traffic))]
    for step, (moment, changes) in enumerate(groupby(merge(*streams, key=itemgetter(0)), key=itemgetter(0))):
        if step >= most_rows:
            raise TraceError(
                f"the rates that traffic leaves of links change over {MOST_ROWS:,} times; write traffic on fewer "
                "links, longer times in it, or traces with longer steps",
                rule="too-many",
            )
        for _, place, change in changes:
            if isinstance(change, Row):
                row = change
            else:
                taken[place] = change
        capacity_bps = rate_bps if row.rate_bps is None else row.rate_bps
        now = replace(row, time_s=moment, rate_bps=_left(capacity_bps, sum(taken)))
        if not rows or not now.says_as(rows[-1]):
            rows.append(now)
    return Trace(lasting(rows, lasts_s), end)


def _left(capacity_bps: float, taken_bps: float) -> float:
    """Return the rate that traffic leaves: at least that of a file's slowest link, unless the link itself has less."""
    least = max(capacity_bps * (1 - MOST_SHARE), min(capacity_bps, LEAST_BPS))
    return max(capacity_bps - taken_bps, least)


def _length(own: Trace | None, volumes: Sequence[Trace]) -> tuple[float, End]:
    """Return the seconds that the rows of `left_by` last, and the trace's end."""
    if own is not None and own.end == "stop":
        return own.duration_s - own.offset_s, "stop"
    traces = [own, *volumes] if own is not None else volumes
    least_s = max([LASTS_S, *(trace.duration_s for trace in traces if trace.end != "loop")])
    lap_s = max((trace.duration_s for trace in traces if trace.end == "loop"), default=least_s)
    return lap_s * math.ceil(least_s / lap_s), "loop" if own is None else own.end


#: A moment, the number of the traffic that changes then (-1 for the link's own trace), and its new rate or row.
_Step = tuple[float, int, float | Row]


def _own_rows(own: Trace | None, until_s: float) -> Iterator[_Step]:
    for moment, row in own.changes() if own is not None else ():
        if row is None or moment >= until_s:
            return
        yield moment, -1, row


def _taken(place: int, traffic: Traffic, draw: random.Random, until_s: float) -> Iterator[_Step]:
    """Yield the changes of one traffic, to the millisecond."""
    for moment, rate_bps in traffic.changes(draw):
        if (moment := round(moment, 3)) >= until_s:
            return
        yield moment, place, rate_bps
