"""Rates as Pensieve (SIGCOMM 2017) and the work that follows it keep them: a line has seconds and Mbit/s.

    0.0    1.25
    0.93   2.75
    2.04   0.5

Times are irregular. As in Pensieve's own simulator, a line's rate was received in the time that ends at the line; the
first line only says when that time begins. So these lines are 0.93 s of 2.75 Mbit/s and 1.11 s of 0.5 Mbit/s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from testbed.trace.forms import Form, ImportedTrace
from testbed.trace.resample import Volume, rates_between
from testbed.trace.table import with_points
from testbed.trace.text import numbered
from testbed.trace.trace import Row, Trace, TraceError, lasting

#: The greatest rate, in Mbit/s. No link of the collections in this form had 10 Gbit/s: larger numbers are in kbit/s or
#: bit/s.
MOST_MBITS = 1e4
#: The greatest rate, in Mbit/s, below which a link never stays. The collections in this form are of phones, buses and
#: broadband, whose rates fall below 1 Gbit/s at times; a file in kbit/s may have no number below 1,000.
MOST_LASTING_MBITS = 1e3
#: The greatest median time between two lines. In the collections it is half a second to five; in ms it would be 500 or
#: more.
MOST_GAP_S = 300.0


def parse_pensieve(lines: Sequence[str]) -> Trace:
    """Return the trace in a file's lines: a line's rate holds since the line before, so the first gives only its time.

    Raises TraceError, with the line, where a line is wrong or there are fewer than two.
    """
    times: list[float] = []
    rates: list[float] = []
    for number, cells in with_points([(number, line.split()) for number, line in numbered(lines)]):
        try:
            time_s, rate = _time_and_rate(cells)
            if times and time_s <= times[-1]:
                text = f"{time_s:g} s follows {times[-1]:g} s; sort the lines, each time once"
                raise TraceError(text, rule="order", given=time_s)
        except TraceError as error:
            raise error.at_line(number) from None
        times.append(time_s)
        rates.append(rate)
    if len(times) < 2:
        text = f"the file has {len(times)} lines; write two or more, the first of which only begins"
        raise TraceError(text, rule="too-few", given=len(times))
    moving = [rate for rate in rates[1:] if rate > 0]
    if moving and (least := min(moving)) > MOST_LASTING_MBITS:
        text = (
            f"every rate is 0 or over {MOST_LASTING_MBITS:g} Mbit/s (the least is {least:g}), so the file counts kbit/s"
        )
        remedy = "write Mbit/s; a link that is so fast, as a CSV with time_s and rate_mbps"
        raise TraceError(f"{text}; {remedy}", rule="unit", given=least)
    edges = [time_s - times[0] for time_s in times]
    if (gap := median(after - before for before, after in pairwise(edges))) > MOST_GAP_S:
        text = f"the median time between two lines is {gap:g} s, so the file counts milliseconds; write seconds"
        raise TraceError(text, rule="unit")
    steps = zip(rates[1:], pairwise(edges), strict=True)
    source = Volume.of_steps(edges, (rate * 1e6 / 8 * (stop - start) for rate, (start, stop) in steps))
    rows = [Row(start, bps) for start, bps in zip(edges, rates_between(source, edges), strict=False)]
    return Trace(lasting(rows, edges[-1]))


def _time_and_rate(cells: Sequence[str]) -> tuple[float, float]:
    if len(cells) != 2:
        text = f"the line has {len(cells)} columns; write two: seconds and Mbit/s"
        raise TraceError(text, rule="cells", given=len(cells))
    time_s, rate = map(_number, cells)
    if rate > MOST_MBITS:
        text = f"{rate:g} Mbit/s is over {MOST_MBITS:g} Mbit/s, so the file counts kbit/s or less; write Mbit/s"
        raise TraceError(text, rule="unit", given=rate)
    return time_s, rate


def _number(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        text = f"{cell[:40]!r} is not a number; write seconds and Mbit/s"
        raise TraceError(text, rule="number", given=cell) from None
    if not (math.isfinite(value) and 0 <= value <= 1e10):
        raise TraceError(f"{cell[:40]!r} is out of range; write s and Mbit/s from 0 to 1e10", rule="range", given=value)
    return value


FORM = Form(
    "pensieve",
    "Lines of seconds and Mbit/s, at irregular times.",
    lambda text, _: [
        ImportedTrace(parse_pensieve(text.splitlines()), ("each rate holds for the time that ended at its line",))
    ],
)
