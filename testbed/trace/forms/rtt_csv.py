"""Round trips in CSV: when each packet was sent, and how long its reply took in ms; -1 where nothing came back.

    timestamp_ns,rtt
    1700000000000000000,42.1
    1700000000020000000,-1

The columns may have other units in their names: `timestamp_us`, `timestamp_ms` or `timestamp_s`, `rtt_ms`, `rtt_us`,
`rtt_ns` or `rtt_s`. Round trips without a unit that can't be in ms are refused.

LENS (MMSys 2024) calls the first column `timestamp`, in nanoseconds or in seconds with a fraction. A `timestamp` of a
moment in this century tells its unit by its size: 1.7e9 are seconds, 1.7e18 nanoseconds. Where LENS knows in which
direction a packet was lost, its round trip is 0: no reply takes no time, so 0 is a loss too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from statistics import median

from testbed.trace.forms import Form
from testbed.trace.forms.round_trips import STEP_HELP, import_round_trips
from testbed.trace.quantity import doubtful_round_trips
from testbed.trace.table import Record, read_records
from testbed.trace.trace import TraceError

#: Columns of times, and how many ns each counts.
COLUMNS = {"timestamp_ns": 1, "timestamp_us": 10**3, "timestamp_ms": 10**6, "timestamp_s": 10**9, "timestamp": 1}
#: Columns of round trips, and how many ms each counts.
TRIPS = {"rtt": 1.0, "rtt_ms": 1.0, "rtt_us": 1e-3, "rtt_ns": 1e-6, "rtt_s": 1e3}
#: The round trips that mean a loss.
LOST_MS = (-1.0, 0.0)
MOST_MS = 120_000.0
#: The year 2262.
MOST_NS = 2**63
#: The years 2001 to 2100, in seconds since 1970: in ms, µs and ns these are other numbers.
OUR_TIME_S = range(10**9, 4_102_444_800)
#: The least median time between packets that measure round trips: LENS's are 10 ms apart. Packets that are sent each
#: second seem to be 1 ms apart where µs are read as ns.
LEAST_GAP_S = 5e-3
#: The same for a column that names its unit: no prober sends 10,000 packets a second.
LEAST_NAMED_GAP_S = 1e-4


def parse_rtt_csv(lines: Sequence[str]) -> list[tuple[float, float | None]]:
    """Return (seconds, round trip in seconds or None) for each line of a file. Raises TraceError with the line."""
    samples: list[tuple[float, float | None]] = []
    without_unit: list[float] = []
    began_ns = last_ns = ns = 0
    for record in read_records(lines, (), (*COLUMNS, *TRIPS)):
        trip_column, column = _column(record, TRIPS), _column(record, COLUMNS)
        ns = ns or _unit_ns(record, column)
        time_ns = _time_ns(record, column, ns)
        if not samples:
            began_ns = time_ns
        elif time_ns < last_ns:
            text = f"its {column} is before that of the line above; sort the lines"
            raise TraceError(text, rule="order", field=column).at_line(record.line)
        last_ns = time_ns
        trip = record.number(trip_column, LOST_MS[0], MOST_MS / TRIPS[trip_column])
        if LOST_MS[0] < trip < 0:
            text = f"{trip_column} is {trip:g}; write -1 where nothing came back"
            raise TraceError(text, rule="range", field=trip_column, given=trip).at_line(record.line)
        if trip_column == "rtt" and trip > 0:
            without_unit.append(trip)
        # Nanoseconds since 1970 have more digits than a float.
        trip_s = None if trip in LOST_MS else trip * TRIPS[trip_column] / 1e3
        samples.append(((time_ns - began_ns) / 1e9, trip_s))
    if not samples:
        raise TraceError("the file has no lines below its header; write one or more", rule="empty")
    if doubt := doubtful_round_trips(without_unit):
        text = f"the column rtt has no unit, and {doubt}; name it by its unit: {', '.join(list(TRIPS)[1:])}"
        raise TraceError(text, rule="unit", field="rtt")
    _check_gaps(samples, column, ns)
    return samples


def _column(record: Record, known: Mapping[str, object]) -> str:
    there = [name for name in known if name in record.cells]
    if len(there) == 1:
        return there[0]
    if there:
        text = f"the header has both {there[0]!r} and {there[1]!r}; leave one out"
        raise TraceError(text, rule="two-columns", field=there[0]).at_line(record.header)
    first = next(iter(known))
    text = f"the header has no column {first!r}; it needs {next(iter(COLUMNS))} and rtt"
    raise TraceError(text, rule="missing-column", field=first).at_line(record.header)


def _unit_ns(record: Record, column: str) -> int:
    """Return how many ns the column counts: by its name, or for `timestamp` by the size of the number."""
    if column != "timestamp":
        return COLUMNS[column]
    text = record.cells[column]
    whole = text.partition(".")[0]
    if whole.isdecimal():
        for ns in (10**9, 10**6, 10**3, 1):
            if int(whole[:40]) * ns // 10**9 in OUR_TIME_S:
                return ns
    return 10**9 if "." in text else 1


def _check_gaps(samples: Sequence[tuple[float, float | None]], column: str, ns: int) -> None:
    """Refuse times that are too close for their unit: where they count from the begin, their size does not tell it."""
    if column == "timestamp" and ns > 1:
        return
    gaps = [after - before for (before, _), (after, _) in pairwise(samples) if after > before]
    if gaps and median(gaps) < (LEAST_GAP_S if column == "timestamp" else LEAST_NAMED_GAP_S):
        doubt = "has no unit, and in ns" if column == "timestamp" else "has another unit than its name says: by that"
        remedy = f"name it by its unit: {', '.join(list(COLUMNS)[:-1])}"
        text = f"the column {column} {doubt} its packets are {median(gaps) * 1e9:g} ns apart; {remedy}"
        raise TraceError(text, rule="unit", field=column)


def _time_ns(record: Record, column: str, ns: int) -> int:
    given = record.cells[column]
    try:
        time_ns = Decimal(given[:40]) * ns
        if not (time_ns.is_finite() and 0 <= time_ns < MOST_NS and (ns > 1 or time_ns == int(time_ns))):
            raise InvalidOperation
    except ArithmeticError:
        unit = {1: "whole nanoseconds", 10**3: "microseconds", 10**6: "milliseconds", 10**9: "seconds"}[ns]
        text = f"{column} is {given[:40]!r}; write {unit} since 1970"
        raise TraceError(text, rule="number", field=column, given=given).at_line(record.line) from None
    return int(time_ns)


FORM = Form(
    "rtt-csv",
    "CSV with timestamp_ns and rtt in ms, -1 for a loss: delay and loss.",
    lambda text, step_s: import_round_trips(parse_rtt_csv(text.splitlines()), step_s),
    step=STEP_HELP,
)
