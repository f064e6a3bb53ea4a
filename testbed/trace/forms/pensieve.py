"""Rates as Pensieve (SIGCOMM 2017) and the work that follows it keep them: a line has seconds and Mbit/s.

    0.0    1.25
    0.93   2.75
    2.04   0.5

Times are irregular. As in Pensieve's own simulator a line's rate is that of the time which ends at the line, since it
is what was received by then; the first line only says when it begins. So these are 0.93 s of 2.75 Mbit/s and 1.11 s of
0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from testbed.trace.cells import with_points
from testbed.trace.resample import rates_between
from testbed.trace.text import numbered
from testbed.trace.trace import Row, Trace, TraceError, lasting
from testbed.trace.volume import Volume

#: Mbit/s: no link of the collections that have this form had 10 Gbit/s. Larger numbers are kbit/s or bit/s.
MOST_MBITS = 1e4
#: Between two lines, in the middle: those of the collections are half a second to five apart, which is 500 ms or more.
MOST_GAP_S = 300.0


def parse_pensieve(lines: Sequence[str]) -> Trace:
    """The trace in the lines of a file, a row for each but the first; TraceError names the line."""
    table = with_points([(number, line.split()) for number, line in numbered(lines)])
    times: list[float] = []
    rates: list[float] = []
    for number, cells in table:
        if len(cells) != 2:
            raise TraceError(
                f"line {number}: has {len(cells)} columns; write two: seconds and Mbit/s",
                line=number,
                rule="cells",
                given=len(cells),
            )
        time_s, rate = (_number(number, cell) for cell in cells)
        if times and time_s <= times[-1]:
            raise TraceError(
                f"line {number}: {time_s:g} s does not come after {times[-1]:g} s; sort the lines",
                line=number,
                rule="order",
                given=time_s,
            )
        times.append(time_s)
        if rate > MOST_MBITS:
            raise TraceError(
                f"line {number}: {rate:g} Mbit/s is over {MOST_MBITS:g}: it counts kbit/s or less; write Mbit/s"
            )
        rates.append(rate)
    if len(times) < 2:
        raise TraceError(
            f"has {len(times)} lines; write two or more: the first one only begins", rule="too-few", given=len(times)
        )
    edges = [time_s - times[0] for time_s in times]
    if (gap := median(after - before for before, after in pairwise(edges))) > MOST_GAP_S:
        raise TraceError(f"has a line each {gap:g} s, as files do that count milliseconds; write seconds", rule="unit")
    steps = zip(rates[1:], pairwise(edges), strict=True)
    source = Volume.of_steps(edges, (rate * 1e6 / 8 * (stop - start) for rate, (start, stop) in steps))
    rows = [Row(start, bps) for start, bps in zip(edges, rates_between(source, edges), strict=False)]
    return Trace(lasting(rows, edges[-1]))


def _number(line: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise TraceError(
            f"line {line}: {cell[:40]!r} is not a number; write seconds and Mbit/s",
            line=line,
            rule="number",
            given=cell,
        ) from None
    if not (math.isfinite(value) and 0 <= value <= 1e10):
        raise TraceError(f"line {line}: {cell[:40]} must be between 0 and 1e10", line=line, rule="range", given=value)
    return value
