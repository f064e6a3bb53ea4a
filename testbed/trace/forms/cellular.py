"""Logs of a phone in a cellular network, a line a second: the CSV form of the 5G dataset of Raca et al. (MMSys 2020).

    Timestamp,Longitude,Latitude,…,DL_bitrate,UL_bitrate,State,PINGAVG,…
    2019.12.14_10.16.30,-8.39,51.89,…,27431,312,D,42.5,…
    2019.12.14_10.16.31,-8.39,51.89,…,30112,298,D,-,…

Bit rates are in kbit/s, `PINGAVG` is a round trip in ms, and `-` is said where nothing was measured: then the value
before holds. Lines of the same second count together, with the mean of their values. Where a log has a gap, the line
before it holds. Rates are what the phone received and sent: those of a second in which it asked for nothing say
nothing of the network, so take logs of downloads for the one direction and of uploads for the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean

from testbed.trace.forms.table import Record, read_records
from testbed.trace.quantity import doubtful_round_trips
from testbed.trace.resample import rates_between
from testbed.trace.trace import Row, Trace, TraceError, lasting
from testbed.trace.volume import Volume

#: Of each direction.
RATES = {"down": "DL_bitrate", "up": "UL_bitrate"}
PING = "PINGAVG"
MISSING = ("-", "")
#: That of the dataset; others are read as ISO 8601.
TIMESTAMP = "%Y.%m.%d_%H.%M.%S"
MOST_MS = 120_000.0
#: 10 Gbit/s: no phone has received more. Larger numbers are bit/s.
MOST_KBITS = 1e7
#: The dataset has whole kbit/s. Fractions below this are of a file that counts Mbit/s: 5G has had a few thousand.
MOST_FRACTIONS = 1e4
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class CellularLog:
    """Either direction's trace, as far as the log has one, and why not where it has none."""

    traces: dict[str, Trace]
    left_out: dict[str, str]


def parse_cellular(lines: Sequence[str]) -> CellularLog:
    """The traces in the lines of a file; TraceError names the line, or says that there is none."""
    moments: dict[float, list[Record]] = {}
    for record in read_records(lines, ("Timestamp",), (*RATES.values(), PING)):
        moments.setdefault(_time_s(record), []).append(record)
    for before, after in pairwise(moments):
        if after < before:
            number = moments[after][0].line
            raise TraceError(
                f"line {number}: its Timestamp is before that of the line before it; sort the lines",
                line=number,
                rule="order",
                field="Timestamp",
            )
    if len(moments) < 2:
        raise TraceError(f"has {len(moments)} moments; a trace needs two or more", rule="too-few", given=len(moments))
    records = [record for each in moments.values() for record in each if record.cells.get(PING, "") not in MISSING]
    for column in RATES.values():
        said = [record.cells.get(column, "") for each in moments.values() for record in each]
        rates = [float(cell) for cell in said if NUMBER.fullmatch(cell)]
        if rates and max(rates) < MOST_FRACTIONS and any(rate != int(rate) for rate in rates):
            rule = f"column {column}: counts whole kbit/s, and has fractions up to {max(rates):g}"
            raise TraceError(f"{rule}, as Mbit/s have; write kbit/s", rule="unit", field=column)
    if doubt := doubtful_round_trips(record.number(PING, 0, MOST_MS) for record in records):
        raise TraceError(f"column {PING}: counts ms, and {doubt}; write ms", rule="unit", field=PING)
    traces: dict[str, Trace] = {}
    left_out: dict[str, str] = {}
    for direction, column in RATES.items():
        try:
            traces[direction] = _trace(moments, column)
        except _NoRate as error:
            left_out[direction] = f"{column} {error}"
    if not traces:
        raise TraceError(
            "; ".join(left_out.values()), rule="no-rate", field=", ".join(RATES[direction] for direction in left_out)
        )
    return CellularLog(traces, left_out)


class _NoRate(TraceError):
    """A direction of which the log makes no trace."""


def _trace(moments: dict[float, list[Record]], column: str) -> Trace:
    if column not in next(iter(moments.values()))[0].cells:
        raise _NoRate("is no column of the header")
    rates = list(_held(moments, column, MOST_KBITS))
    begin = next((number for number, rate in enumerate(rates) if rate is not None), None)
    if begin is None or begin > len(rates) - 2:
        raise _NoRate("has no two values")
    times = list(moments)[begin:]
    # The last line lasts as long as the one before it.
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
    """The column's value at each moment; where none is said, the one before; None before the first."""
    last: float | None = None
    for records in moments.values():
        said = [record.number(column, 0, most) for record in records if record.cells[column] not in MISSING]
        last = fmean(said) if said else last
        yield last


def _time_s(record: Record) -> float:
    text = record.cells["Timestamp"]
    try:
        return datetime.strptime(text, TIMESTAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        example = "2019.12.14_10.16.30"
        raise TraceError(
            f"line {record.line}: Timestamp {text[:40]!r} is no time; write such as {example}",
            line=record.line,
            rule="number",
            field="Timestamp",
            given=text,
        ) from None
