"""Round trips that were measured, some of them lost, as a trace of delay and loss by windows of time.

A window has half of its round trips' median as the delay, and a loss that, met once each way, loses as many round
trips as were lost in it. So the trace is for both directions of a link. Where all of a window's were lost, the delay
before it holds, and where nothing was sent the row before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from testbed.trace.trace import Row, Trace, TraceError, lasting

#: A window's length where none is asked for, unless it would have fewer of them than this.
WINDOW_S, LEAST_IN_WINDOW = 1.0, 10

#: (seconds, round trip in seconds or None where it was lost), by time.
Samples = Sequence[tuple[float, float | None]]


def window_for(samples: Samples) -> float:
    """A second, or what ten samples take."""
    gaps = [after - before for (before, _), (after, _) in pairwise(samples) if after > before]
    return max(WINDOW_S, round(LEAST_IN_WINDOW * median(gaps), 3)) if gaps else WINDOW_S


def by_windows(samples: Samples, window_s: float | None = None) -> Trace:
    """The trace. TraceError where no round trip came back."""
    if all(trip is None for _, trip in samples):
        raise TraceError("has no round trip that came back; take a measurement that has some", rule="no-reply")
    window_s = window_for(samples) if window_s is None else window_s
    begin = samples[0][0]
    windows: dict[int, list[float | None]] = {}
    for time_s, trip in samples:
        windows.setdefault(math.floor(round((time_s - begin) / window_s, 9)), []).append(trip)
    delay_s = next(trip for _, trip in samples if trip is not None) / 2
    rows = []
    for number, trips in windows.items():
        came = [trip for trip in trips if trip is not None]
        delay_s = median(came) / 2 if came else delay_s
        rows.append(Row(round(number * window_s, 9), delay_s=delay_s, loss=1 - math.sqrt(len(came) / len(trips))))
    return Trace(lasting(rows, (max(windows) + 1) * window_s))
