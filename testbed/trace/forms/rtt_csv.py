"""Round trips in CSV: when each packet was sent, and how long it took, in ms; -1 where nothing came back.

    timestamp_ns,rtt
    1700000000000000000,42.1
    1700000000020000000,-1

LENS (MMSys 2024) calls the first column `timestamp`, in nanoseconds as well, or in seconds with a fraction. Where it
knows in which direction a packet was lost, its round trip is 0: no packet takes no time, so that is a loss too.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from testbed.trace.forms.table import Record, read_records
from testbed.trace.trace import TraceError

COLUMNS = ("timestamp_ns", "timestamp")
LOST_MS = (-1.0, 0.0)
MOST_MS = 120_000.0
#: The year 2262.
MOST_NS = 2**63


def parse_rtt_csv(lines: Sequence[str]) -> list[tuple[float, float | None]]:
    """(seconds, round trip in seconds or None) of each line; TraceError names the line."""
    samples: list[tuple[float, float | None]] = []
    began_ns = last_ns = 0
    for record in read_records(lines, ("rtt",), COLUMNS):
        time_ns = _time_ns(record)
        if not samples:
            began_ns = time_ns
        elif time_ns < last_ns:
            raise TraceError(
                f"line {record.line}: its time is before that of the line before; sort the lines",
                line=record.line,
                rule="order",
            )
        last_ns = time_ns
        trip_ms = record.number("rtt", LOST_MS[0], MOST_MS)
        if LOST_MS[0] < trip_ms < 0:
            raise TraceError(
                f"line {record.line}: rtt {trip_ms:g} ms is below 0; write -1 where nothing came back",
                line=record.line,
                rule="range",
                field="rtt",
                given=trip_ms,
            )
        # Nanoseconds since 1970 have more digits than a float.
        samples.append(((time_ns - began_ns) / 1e9, None if trip_ms in LOST_MS else trip_ms / 1e3))
    if not samples:
        raise TraceError("has no lines below its header; a trace needs one or more", rule="empty")
    return samples


def _time_ns(record: Record) -> int:
    column = next((name for name in COLUMNS if name in record.cells), None)
    if column is None:
        raise TraceError(
            f"line 1: the header has no column {COLUMNS[0]!r}; it must have {COLUMNS[0]} and rtt",
            rule="missing-column",
            field=COLUMNS[0],
            line=1,
        )
    text = record.cells[column]
    try:
        value = Decimal(text[:40])
        time_ns = value * 10**9 if column == "timestamp" and "." in text else value
        if not (time_ns.is_finite() and 0 <= time_ns < MOST_NS and (column == "timestamp" or time_ns == int(time_ns))):
            raise InvalidOperation
    except ArithmeticError:
        rule = f"{column} {text[:40]!r} is no whole number of nanoseconds since 1970"
        raise TraceError(
            f"line {record.line}: {rule}", line=record.line, rule="number", field=column, given=text
        ) from None
    return int(time_ns)
