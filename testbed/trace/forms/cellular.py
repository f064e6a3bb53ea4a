"""Logs of a phone in a cellular network, a line a second: the CSV form of the 5G dataset of Raca et al. (MMSys 2020).

    Timestamp,Longitude,Latitude,…,DL_bitrate,UL_bitrate,State,PINGAVG,…
    2019.12.14_10.16.30,-8.39,51.89,…,27431,312,D,42.5,…
    2019.12.14_10.16.31,-8.39,51.89,…,30112,298,D,-,…

Bit rates are in kbit/s, `PINGAVG` is a round trip in ms, and `-` says that nothing was measured: then the value before
holds. Lines of the same second count together, with the mean of their values. Where a log has a gap, the line before it
holds. Rates are what the phone received and sent: in a second in which it asked for nothing, they say nothing about the
network. So take logs of downloads for the one direction and logs of uploads for the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean

from testbed.trace.forms import Form, ImportedTrace
from testbed.trace.quantity import doubtful_round_trips
from testbed.trace.resample import Volume, rates_between
from testbed.trace.table import Record, read_records
from testbed.trace.trace import Row, Trace, TraceError, lasting

#: Direction → the column of its rates.
RATES = {"down": "DL_bitrate", "up": "UL_bitrate"}
PING = "PINGAVG"
MISSING = ("-", "")
#: The dataset's form of times; other times are read as ISO 8601.
TIMESTAMP = "%Y.%m.%d_%H.%M.%S"
MOST_MS = 120_000.0
#: 10 Gbit/s: no phone has received more. Larger numbers are bit/s.
MOST_KBITS = 1e7
#: The dataset has whole kbit/s. Fractions below this are of a file that counts Mbit/s: 5G has had a few thousand.
MOST_FRACTIONS = 1e4
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class CellularLog:
    """The traces of a log by direction, `down` or `up`."""

    traces: dict[str, Trace]
    #: Why a direction has no trace.
    left_out: dict[str, str]


def parse_cellular(lines: Sequence[str]) -> CellularLog:
    """Return the traces in the lines of a file. Raises TraceError with the line, or why no direction has a trace."""
    moments: dict[float, list[Record]] = {}
    before_s = -math.inf
    for record in read_records(lines, ("Timestamp",), (*RATES.values(), PING)):
        if (time_s := _time_s(record)) < before_s:
            text = "its Timestamp is before that of the line above; sort the lines"
            raise TraceError(text, rule="order", field="Timestamp").at_line(record.line)
        before_s = time_s
        moments.setdefault(time_s, []).append(record)
    if len(moments) < 2:
        text = f"the log has {len(moments)} moments; take a log of two or more"
        raise TraceError(text, rule="too-few", given=len(moments))
    _check_units([record for records in moments.values() for record in records])
    traces: dict[str, Trace] = {}
    left_out: dict[str, str] = {}
    for direction, column in RATES.items():
        try:
            traces[direction] = _trace(moments, column)
        except _NoRate as error:
            left_out[direction] = f"{column}: {error}"
    if not traces:
        columns = ", ".join(RATES[direction] for direction in left_out)
        raise TraceError("; ".join(left_out.values()), rule="no-rate", field=columns)
    return CellularLog(traces, left_out)


def _check_units(records: Sequence[Record]) -> None:
    """Refuse rates that can't be in kbit/s, and round trips that can't be in ms."""
    for column in RATES.values():
        cells = [record.cells.get(column, "") for record in records]
        rates = [float(cell) for cell in cells if NUMBER.fullmatch(cell)]
        if rates and max(rates) < MOST_FRACTIONS and any(rate != int(rate) for rate in rates):
            found = f"has fractions and at most {max(rates):g}, so it counts Mbit/s"
            raise TraceError(f"the column {column} {found}; write kbit/s", rule="unit", field=column)
    trips = (record.number(PING, 0, MOST_MS) for record in records if record.cells.get(PING, "") not in MISSING)
    if doubt := doubtful_round_trips(trips):
        raise TraceError(f"the column {PING} counts ms, and {doubt}; write ms", rule="unit", field=PING)


class _NoRate(TraceError):
    """A log makes no trace for one direction."""


def _trace(moments: dict[float, list[Record]], column: str) -> Trace:
    if column not in next(iter(moments.values()))[0].cells:
        raise _NoRate("the header has no such column")
    rates = list(_held(moments, column, MOST_KBITS))
    begin = next((number for number, rate in enumerate(rates) if rate is not None), None)
    if begin is None or begin > len(rates) - 2:
        raise _NoRate("the column has fewer than two values")
    times = list(moments)[begin:]
    # The last line lasts as long as the line before it.
    edges = [time_s - times[0] for time_s in (*times, 2 * times[-1] - times[-2])]
    steps = zip(rates[begin:], pairwise(edges), strict=True)
    source = Volume.of_steps(edges, ((rate or 0.0) * 1e3 / 8 * (stop - start) for rate, (start, stop) in steps))
    try:
        carried = rates_between(source, edges)
    except TraceError as error:
        raise _NoRate(str(error)) from None
    pings = list(_held(moments, PING, MOST_MS)) if PING in next(iter(moments.values()))[0].cells else []
    delays = [None if ping is None else ping / 2e3 for ping in pings[begin:]] or [None] * len(carried)
    rows = [Row(start, bps, delay) for start, bps, delay in zip(edges, carried, delays, strict=False)]
    return Trace(lasting(rows, edges[-1]))


def _held(moments: dict[float, list[Record]], column: str, most: float) -> Iterator[float | None]:
    """Yield the column's mean at each moment; where no record has a value, the mean before it, or None.

    Raises TraceError for a value outside 0 to `most`.
    """
    last: float | None = None
    for records in moments.values():
        values = [record.number(column, 0, most) for record in records if record.cells[column] not in MISSING]
        last = fmean(values) if values else last
        yield last


def _time_s(record: Record) -> float:
    given = record.cells["Timestamp"]
    try:
        return datetime.strptime(given, TIMESTAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(given)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        text = f"Timestamp is {given[:40]!r}; write a time such as 2019.12.14_10.16.30"
        raise TraceError(text, rule="number", field="Timestamp", given=given).at_line(record.line) from None


def _imported(text: str, _: float | None) -> list[ImportedTrace]:
    log = parse_cellular(text.splitlines())
    measured = any(row.delay_s is not None for trace in log.traces.values() for row in trace.rows)
    delays = "delay: half of PINGAVG" if measured else "no delay: the log has no PINGAVG"
    left_out = (f"the other direction is left out: {reason}" for reason in log.left_out.values())
    comments = (delays, *left_out)
    return [ImportedTrace(trace, comments, f"-{direction}") for direction, trace in log.traces.items()]


FORM = Form(
    "5g-csv",
    "CSV with Timestamp, DL_bitrate and UL_bitrate in kbit/s, PINGAVG in ms: NAME-down.csv and NAME-up.csv.",
    _imported,
)
