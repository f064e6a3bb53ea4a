"""Measured round trips, some of them lost, as a trace of delay and loss by windows of time.

A window's delay is half the median of its round trips. Its loss, met once each way, loses the same share of round trips
as were lost in the window, so the trace is for both directions of a link. Where all round trips of a window were lost,
the delay before it holds; where nothing was sent, the row before it. The last window ends with its samples: one lost
packet at the end of a minute is not ten seconds without a reply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from testbed.trace.forms import ImportedTrace
from testbed.trace.trace import Row, Trace, TraceError, lasting

#: The length of a window where none is asked for: a second, or as long as LEAST_IN_WINDOW samples take.
WINDOW_S, LEAST_IN_WINDOW = 1.0, 10
#: The least part of a window for which the last row holds.
LEAST_OF_LAST = 1 / LEAST_IN_WINDOW
#: The help of the option that sets the length.
STEP_HELP = "length of a row; default: 1s, or the time of ten samples where that is longer"

#: (seconds, round trip in seconds or None where it was lost), by time.
Samples = Sequence[tuple[float, float | None]]


def import_round_trips(samples: Samples, window_s: float | None, *more: str) -> list[ImportedTrace]:
    """Return the samples as a trace with comments, the last of which are `more`."""
    window_s = window_for(samples) if window_s is None else window_s
    lost = sum(trip is None for _, trip in samples)
    counted = f"{len(samples)} round trips, {lost} lost, in windows of {window_s:g} s"
    meaning = "delay: half of the median; loss: the share each way that loses as many. For both directions of a link"
    return [ImportedTrace(by_windows(samples, window_s), (counted, meaning, *more))]


def window_for(samples: Samples) -> float:
    """Return the seconds of a window: 1, or the time that ten samples take where that is longer."""
    gap_s = _gap_s(samples)
    return WINDOW_S if gap_s is None else max(WINDOW_S, round(LEAST_IN_WINDOW * gap_s, 3))


def _gap_s(samples: Samples) -> float | None:
    """Return the median time between two samples; None where all are of one moment."""
    gaps = [after - before for (before, _), (after, _) in pairwise(samples) if after > before]
    return median(gaps) if gaps else None


def by_windows(samples: Samples, window_s: float) -> Trace:
    """Return the trace of these windows. Raises TraceError where no round trip came back."""
    if all(trip is None for _, trip in samples):
        raise TraceError("no round trip came back; take a measurement with replies", rule="no-reply")
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
    return Trace(lasting(rows, _end_s(samples, rows[-1].time_s, window_s)))


def _end_s(samples: Samples, last_row_s: float, window_s: float) -> float:
    """Return the end of the last window, or where its samples end before."""
    end_s, gap_s = last_row_s + window_s, _gap_s(samples)
    if gap_s is None:
        return end_s
    return min(end_s, max(samples[-1][0] - samples[0][0] + gap_s, last_row_s + LEAST_OF_LAST * window_s))
