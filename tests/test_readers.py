"""A reader of somebody else's file understands what a person would read, or refuses the file.

A generator draws the values first and then a way to write them, so that each test knows what is right: no reader may
end in a traceback, and none may succeed with values that are off by more than 1 %.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.emulation.containers.requirements_file import RequirementsFile
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment
from testbed.spec.graph import Defaults, import_graph, read_graph
from testbed.spec.hosts import Hosts
from testbed.spec.sweep import Sweep
from testbed.spec.topology import Topology
from testbed.telemetry.printed_metrics import figures_in
from testbed.trace.csv import read_speeds
from testbed.trace.forms import iperf3
from testbed.trace.forms.cellular import parse_cellular
from testbed.trace.forms.pcap import read_capture
from testbed.trace.forms.pensieve import FORM as PENSIEVE
from testbed.trace.forms.ping import parse_ping
from testbed.trace.forms.rtt_csv import parse_rtt_csv
from testbed.trace.read import read_trace
from testbed.trace.text import BINARY, read_text
from testbed.trace.trace import Trace, TraceError
from tests.trace.forms import captures

pytestmark = pytest.mark.pure

#: Of each reader in the gate, and of each in `make verify`.
FEW, MANY = 20, 200
OFF = 0.01

SMOKE = Path(__file__).parents[1] / "topologies" / "smoke.yaml"

Values = Sequence[float | None]

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
NEWLINES = ("\n", "\r\n", "\r")
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
#: Separator and decimal sign.
DIALECTS = ((",", "."), (",", ","), (";", ","), (";", "."), ("\t", "."), ("\t", ","))
#: What begins no text, and what no reader of traces takes for its own.
OTHERS = (b"PK\x03\x04\x14\0", b"\x89PNG\r\n\x1a\n", b"\x28\xb5\x2f\xfd", b"%PDF-1.4", b"\x7fELF\2\1", b"\0\1\2\3")
#: What is done to a file that is right. `same` writes it in another way, and then it has to be read.
MUTATIONS = ("same",) * 3 + ("truncated", "bad bytes", "binary", "damaged", "huge", "letters", "swapped", "unit")
#: What is done to a table beside that: two rows exchanged; a cell too few or too many; a row with another separator; no
#: header; two files in one. What stands in such a file is read, or the file is refused.
TABLE_MUTATIONS = ("exchanged", "ragged", "mixed", "headless", "joined")


@dataclass(frozen=True)
class File:
    """A written file. `values` are what a person reads in it, or None if it must be refused.

    `is_prefix` says that the file may end before all of them.
    """

    text: str | bytes
    values: Values | None
    suffix: str
    is_prefix: bool = False


@dataclass(frozen=True)
class Reader:
    """A reader: `write` makes a file by a mutation, and `read` returns the values that the reader finds in it."""

    name: str
    write: Callable[[random.Random, str], File]
    read: Callable[[Path], Values]
    is_table: bool = False


def number(rng: random.Random, least: float, most: float) -> float:
    """Draw a number whose decimals are not three: with a comma, such a number might be thousands."""
    drawn = round(rng.uniform(least, most), rng.choice((1, 2, 4)))
    return drawn if drawn != round(drawn, 3) else round(drawn, 2)


def table(rng: random.Random, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the text of a table in one of the dialects, with or without comments."""
    separator, sign = rng.choice(DIALECTS)
    lines = [separator.join(header)]
    for row in rows:
        cells = [str(cell).replace(".", sign) if isinstance(cell, float) else str(cell) for cell in row]
        lines.append(separator.join(f'"{cell}"' if separator in cell else cell for cell in cells))
    return "\n".join(["# Zürich", *lines] if rng.random() < 0.5 else lines) + "\n"


def mutated_rows(
    rng: random.Random, mutation: str, header: list[str], rows: list[list[object]], columns: Sequence[int]
) -> bool:
    """Spoil a cell of the rows for `huge` and `letters`, or swap two columns with their names.

    Returns:
        Whether the file has to be refused now.
    """
    row, column = rng.randrange(len(rows)), rng.choice(list(columns))
    if mutation == "huge":
        rows[row][column] = rng.choice(("1e300", "9" * 400, "-5e9", "inf", "1e15"))
        return True
    if mutation == "letters":
        rows[row][column] = rng.choice(("4x0", "1,2,3", "fast", "12 apples", "0x1p3", "--5", "1e"))
        return True
    if mutation == "swapped" and len(columns) > 1:
        a, b = rng.sample(list(columns), 2)
        for each in (header, *rows):
            each[a], each[b] = each[b], each[a]  # type: ignore[index]
    return False


def times(rng: random.Random, count: int) -> list[float]:
    found = [0.0]
    for _ in range(count - 1):
        found.append(round(found[-1] + rng.choice((0.5, 1.0, 1.5, 0.25)), 4))
    return found


def write_trace(rng: random.Random, mutation: str) -> File:
    header = ["time_s", "rate_mbps", "delay_ms", "loss_pct"]
    moments = times(rng, rng.randint(2, 12))
    rows: list[list[object]] = [[t, number(rng, 1, 900), number(rng, 1, 300), number(rng, 0.1, 5)] for t in moments]
    values = [cell for row in rows for cell in row]
    refused = mutated_rows(rng, mutation, header, rows, (1, 2, 3))
    if mutation == "unit":
        refused = True
        row = rng.choice(rows)
        row[1] = rng.choice((f"{row[1]} Mbit", f"{row[1]}e6 bit/s", f"{row[1]}M"))
    return File(table(rng, header, rows), None if refused else values, ".csv")


def read_rows(trace: Trace) -> Values:
    return [
        cell
        for row in trace.rows
        for cell in (row.time_s, (row.rate_bps or 0) / 1e6, (row.delay_s or 0) * 1e3, (row.loss or 0) * 100)
    ]


def write_speed(rng: random.Random, mutation: str) -> File:
    rows: list[list[object]] = [[t, number(rng, 0.1, 9)] for t in times(rng, rng.randint(2, 9))]
    values = [cell for row in rows for cell in row]
    refused = mutated_rows(rng, mutation, ["time_s", "speed"], rows, (1,))
    if mutation == "swapped":
        refused, rows = True, [[speed, time] for time, speed in rows]
    return File(table(rng, ["time_s", "speed"], rows), None if refused else values, ".csv")


def write_mahimahi(rng: random.Random, mutation: str) -> File:
    moments = sorted(rng.choices(range(1, 400), k=rng.randint(40, 90)))
    lines: list[str] = [str(moment) for moment in moments]
    place = rng.randrange(len(lines))
    if mutation in ("huge", "letters", "unit"):
        lines[place] = {"huge": "9" * 40, "letters": "4x0", "unit": f"{moments[place]} ms"}[mutation]
    if mutation == "swapped":
        lines[0], lines[-1] = lines[-1], lines[0]
    if rng.random() < 0.5:
        lines.insert(rng.randrange(len(lines)), rng.choice(("# LTE, Zürich", "", "  ")))
    text = rng.choice(("", "# a drive\n")) + "\n".join(lines) + "\n"
    values = None if mutation in ("huge", "letters", "unit", "swapped") else [len(moments), moments[-1] / 1e3]
    return File(text, values, rng.choice((".up", ".down", ".mahimahi", "")))


def read_mahimahi(path: Path) -> Values:
    found = read_trace(path)
    assert found.resampled is not None
    return [found.resampled.source.by(1e9) / 1514, found.trace.duration_s]


def write_pensieve(rng: random.Random, mutation: str) -> File:
    begin = rng.choice((0.0, 1_700_000_000.0))
    rows: list[list[object]] = [[begin + t, number(rng, 1, 90)] for t in times(rng, rng.randint(3, 12))]
    edges, rates = [float(str(row[0])) for row in rows], [float(str(row[1])) for row in rows]
    values: Values | None = [
        value
        for start, stop, rate in zip(edges, edges[1:], rates[1:], strict=False)
        for value in (start - edges[0], (stop - start) * rate)
    ]
    if mutated_rows(rng, mutation, ["", ""], rows, (1,)):
        values = None
    if mutation == "swapped":
        rows, values = [[rate, time] for time, rate in sorted(rows, key=lambda row: -float(str(row[1])))], None
    if mutation == "unit":
        factors = rng.choice(((1e3, 1.0), (1.0, 1e6), (1e9, 1.0)))
        if begin == 0 and factors[0] > 1:
            factors = (1.0, 1e6)
        rows, values = [[float(str(t)) * factors[0], float(str(r)) * factors[1]] for t, r in rows], None
    sign = rng.choice(".,")
    lines = [rng.choice((" ", "\t")).join(f"{cell}".replace(".", sign) for cell in row) for row in rows]
    return File("\n".join(lines) + "\n", values, ".log")


def read_pensieve(path: Path) -> Values:
    (made,) = PENSIEVE.import_file(path)
    rows = made.trace.rows
    ends = [*(row.time_s for row in rows[1:]), made.trace.duration_s]
    found: list[float] = []
    for row, end in zip(rows, ends, strict=True):
        carried = (row.rate_bps or 0) / 1e6 * (end - row.time_s)
        if found and len(rows) > 1 and row is rows[-1] and row.rate_bps == rows[-2].rate_bps:
            found[-1] += carried  # said again, so that the trace ends where it should
        else:
            found += [row.time_s, carried]
    return found


def write_cellular(rng: random.Random, mutation: str) -> File:
    header = ["Timestamp", "DL_bitrate", "UL_bitrate", "PINGAVG"]
    count = rng.randint(3, 12)
    rows: list[list[object]] = [
        [
            f"2019.12.14_10.16.{second:02}",
            float(rng.randint(900, 90_000)),
            float(rng.randint(90, 9_000)),
            number(rng, 9, 90),
        ]
        for second in range(count)
    ]
    values = [float(str(row[column])) for row in rows for column in (1, 2, 3)]
    refused = mutated_rows(rng, mutation, header, rows, (1, 2, 3))
    if mutation == "unit":
        column, factor = rng.choice(((1, 1e5), (3, 1e-3), (3, 1e3)))
        refused = True
        for row in rows:
            row[column] = round(float(str(row[column])) * factor, 6)
    return File(table(rng, header, rows), None if refused else values, ".csv")


def read_cellular(path: Path) -> Values:
    log = parse_cellular(read_text(path).splitlines())
    down, up = log.traces["down"].rows, log.traces["up"].rows
    return [
        value
        for a, b in zip(down, up, strict=True)
        for value in ((a.rate_bps or 0) / 1e3, (b.rate_bps or 0) / 1e3, None if a.delay_s is None else a.delay_s * 2e3)
    ]


TRIP_UNITS = {"rtt": 1.0, "rtt_ms": 1.0, "rtt_us": 1e3, "rtt_s": 1e-3}
TIME_UNITS = {"timestamp_ns": 10**9, "timestamp_us": 10**6, "timestamp_ms": 10**3, "timestamp": 10**9, "timestamp_s": 1}


def write_rtt(rng: random.Random, mutation: str) -> File:
    begin, trips = rng.choice((0, 1_700_000_000)), [number(rng, 5, 300) for _ in range(rng.randint(3, 15))]
    trip_name, time_name = rng.choice(list(TRIP_UNITS)), rng.choice(list(TIME_UNITS))
    scale, ticks = TRIP_UNITS[trip_name], TIME_UNITS[time_name]
    if time_name == "timestamp" and begin:
        ticks = rng.choice((10**9, 10**6, 10**3, 1))
    values: Values | None = [value for second, trip in enumerate(trips) for value in (float(second), trip)]
    if mutation == "unit":
        if rng.random() < 0.5:
            trip_name, scale, values = "rtt", rng.choice((1e-3, 1e3, 1e6)), None
        else:
            time_name, ticks, begin, values = "timestamp", rng.choice((1, 1000)), 0, None
    header = [time_name, trip_name]
    rows: list[list[object]] = [[(begin + second) * ticks, round(trip * scale, 7)] for second, trip in enumerate(trips)]
    if mutated_rows(rng, mutation, header, rows, (1,)):
        values = None
    if mutation == "swapped":
        header, rows = header[::-1], [row[::-1] for row in rows]
    return File(table(rng, header, rows), values, ".csv")


def read_rtt(path: Path) -> Values:
    found = parse_rtt_csv(read_text(path).splitlines())
    return [value for time_s, trip in found for value in (time_s, None if trip is None else trip * 1e3)]


PINGS = (
    ("64 bytes from 10.0.0.2: icmp_seq={} ttl=54 time={} {}", "ms", "{} packets transmitted, 1 received, time {}ms"),
    (
        "64 Bytes von 10.0.0.2: icmp_seq={} ttl=54 Zeit={} {}",
        "ms",
        "{} Pakete übertragen, 1 empfangen, 0% weg, {}ms",
    ),
    (
        "64 octets de 10.0.0.2 : icmp_seq={} ttl=54 temps={} {}",
        "ms",
        "{} paquets transmis, 1 reçus, 0 %, time {} ms",
    ),
    (
        "64 байт от 10.0.0.2: icmp_seq={} ttl=54 время={} {}",
        "мс",
        "{} пакетов передано, 1 получено, 0%, время {}мс",
    ),
    ("来自 10.0.0.2: icmp_seq={} ttl=54 时间={} {}", "毫秒", "已发送 {} 个包， 已接收 1 个包, 0% 包丢失, 耗时 {} 毫秒"),
)


def write_ping(rng: random.Random, mutation: str) -> File:
    line, unit, summary = rng.choice(PINGS)
    header = "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data."
    # Where the last line is cut off or spoiled, packets count as a second apart, as ping sends them by itself.
    period_ms = 1000 if mutation in ("truncated", "bad bytes") else 200
    trips = [number(rng, 1, 300) for _ in range(rng.randint(2, 12))]
    sign, factor, shown = rng.choice(".,"), 1.0, unit
    values: Values | None = [
        value for second, trip in enumerate(trips) for value in (float(second) * period_ms / 1e3, trip)
    ]
    if mutation == "unit":
        shown, factor = rng.choice((("s", 1e-3), ("us", 1e3), ("µs", 1e3), ("sec", 1e-3)))
    cells = [f"{round(trip * factor, 7):.7f}".rstrip("0").replace(".", sign) for trip in trips]
    if mutation in ("huge", "letters"):
        cells[rng.randrange(len(cells))], values = ("9" * 19 if mutation == "huge" else "4x0"), None
    lines = [line.format(number, cell, shown) for number, cell in enumerate(cells, 1)]
    if mutation == "swapped":
        rng.shuffle(lines)
    return File(
        "\n".join([header, *lines, summary.format(len(trips), period_ms * (len(trips) - 1))]) + "\n", values, ".txt"
    )


def read_ping(path: Path) -> Values:
    found = parse_ping(read_text(path).splitlines())
    return [value for time_s, trip in found for value in (time_s, None if trip is None else trip * 1e3)]


def write_iperf3(rng: random.Random, mutation: str) -> File:
    carried = [float(rng.randint(100_000, 5_000_000)) for _ in range(rng.randint(2, 8))]
    protocol = rng.choice(("TCP", "UDP"))
    header = 1514 / 1448 if protocol == "TCP" else 1490 / 1448
    values: Values | None = [bytes_ * 8 * header for bytes_ in carried]

    def document(counted: Sequence[object], sender: bool, **more: object) -> dict[str, object]:
        sums = [
            {"start": i, "end": i + 1, "bytes": bytes_, "omitted": False, "sender": sender}
            for i, bytes_ in enumerate(counted)
        ]
        start = {"test_start": {"protocol": protocol, "blksize": 1448}}
        return {"start": start, "intervals": [{"sum": each} for each in sums], **more}

    made = document(carried, False)
    if mutation == "unit":  # a sender's side
        factor = rng.choice((1.0, 1.3, 50.0))
        sent = [bytes_ * factor for bytes_ in carried]
        end: dict[str, object] = {"sum_sent": {"bytes": sum(sent)}, "sum_received": {"bytes": sum(carried)}}
        if protocol == "UDP":
            packets = int(sum(sent) / 1448)
            end = {"sum": {"packets": packets, "lost_packets": packets - round(packets / factor)}}
        made = document(sent, True, end=end)
        if rng.random() < 0.5:
            made["server_output_json"] = document(carried, False)
        elif factor > 1:
            values = None
    if mutation in ("huge", "letters"):
        carried_: list[object] = list(carried)
        carried_[rng.randrange(len(carried))] = {"huge": 1e300, "letters": "4x0"}[mutation]
        made, values = document(carried_, False), None
    if mutation == "swapped":
        made["intervals"] = list(reversed(made["intervals"]))  # type: ignore[call-overload]
        values = None
    return File(json.dumps(made, indent=rng.choice((None, 2))), values, ".json")


def read_iperf3(path: Path) -> Values:
    made = iperf3.resampled(iperf3.parse_iperf3(read_text(path)), 1.0)
    return [row.rate_bps for row in made.trace.rows]


def write_capture(rng: random.Random, mutation: str) -> File:
    data = captures.frame(captures.ip("10.0.0.1", "10.0.0.2"))
    moments, now = [], captures.BEGIN_NS
    for _ in range(rng.randint(3, 40)):
        moments.append(now)
        now += rng.randrange(1, 50) * 10**6
    packets = [(moment, rng.randint(60, 1514), data) for moment in moments]
    text = rng.choice((captures.classic, captures.blocks))(packets)
    values: Values | None = [
        len(packets),
        (moments[-1] - moments[0]) / 1e9,
        sum(length for _, length, _ in packets),
    ]
    if mutation in ("huge", "letters", "unit", "swapped"):
        text = text[::-1] if mutation == "swapped" else b"\x11" + text[1:]
        values = None
    return File(text, values, rng.choice((".pcap", "")))


def read_packets(path: Path) -> Values:
    found = read_capture(path)
    return [found.packets, found.arrivals.duration_s, found.arrivals.total[-1]]


#: Ways to write a delay given in ms, and a rate given in Mbit/s: the name of the field, and the value's text.
DELAYS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("latency", lambda ms: f"{ms}"),
    ("delay", lambda ms: f'"{ms} ms"'),
    ("latency", lambda ms: f'"{ms}ms"'),
    ("latency", lambda ms: f'"{round(ms / 1e3, 7)} s"'),
    ("delay", lambda ms: f'"{round(ms * 1e3, 3)} us"'),
    ("latency_us", lambda ms: f"{round(ms * 1e3, 3)}"),
    ("delay_s", lambda ms: f"{round(ms / 1e3, 7)}"),
)
RATES: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("capacity", lambda mbit: f"{mbit * 1e6}"),
    ("LinkSpeedRaw", lambda mbit: f"{mbit * 1e6}"),
    ("bw", lambda mbit: f"{mbit}"),
    ("capacity", lambda mbit: f'"{mbit} Mbit"'),
    ("bandwidth", lambda mbit: f'"{mbit}Mbit/s"'),
    ("bandwidth", lambda mbit: f'"{mbit / 1e3:.7f} Gbps"'),
    ("rate", lambda mbit: f'"{mbit / 8:.6f} MB/s"'),
    ("capacity", lambda mbit: f'"{mbit}M"'),
    ("capacity_kbps", lambda mbit: f"{mbit * 1e3}"),
)
WRONG = ('"fast"', '"110 furlongs"', '"1,5 ms"', '"12 34"', "1e300", '"1e999 ms"', '"0x10"', '"110 ms or so"')


def write_graph(rng: random.Random, mutation: str, as_gml: bool) -> File:
    count = rng.randint(3, 6)
    places = [(round(10.0 + 10 * i, 2), round(-20.0 + 15 * i, 2)) for i in range(count)]
    links = [(i, i + 1, number(rng, 60, 300), number(rng, 1, 9000)) for i in range(count - 1)]
    (delay_name, delay), (rate_name, rate) = rng.choice(DELAYS), rng.choice(RATES)
    values: Values | None = [value for _, _, ms, mbit in links for value in (ms, mbit)]
    written = [[source, target, delay(ms), rate(mbit)] for source, target, ms, mbit in links]
    if mutation in ("letters", "huge"):
        written[rng.randrange(len(written))][rng.choice((2, 3))], values = rng.choice(WRONG), None
    if mutation == "unit":  # without a unit, in one that it isn't supposed to be in
        values = None
        if rng.random() < 0.5:
            delay_name = "latency"
            for row, (_, _, ms, _) in zip(written, links, strict=True):
                row[2] = f"{ms / 1e3}"
        else:
            rate_name = rng.choice(("capacity", "bandwidth", "rate"))
            for row, (_, _, _, mbit) in zip(written, links, strict=True):
                row[3] = f"{mbit}"
    south = rng.random() < 0.5
    located = [
        (f'"{lat} N"' if south else f"{lat}", f'"{abs(lon)} {"W" if lon < 0 else "E"}"' if south else f"{lon}")
        for lat, lon in places
    ]
    if mutation == "swapped":
        located, values = [(f'"{abs(lon)} W"', f'"{lat} N"') for lat, lon in places], None
    if as_gml:
        text = "# Zürich\ngraph [\n"
        for i, (lat, lon) in enumerate(located):
            text += f'  node [ id {i} label "Stadt {i}" Latitude {lat} Longitude {lon} ]\n'
        for source, target, ms, mbit in written:
            text += f"  edge [ source {source} target {target} {delay_name} {ms} {rate_name} {mbit} ]\n"
        return File(text + "]\n", values, ".gml")
    keys = {"Latitude": "node", "Longitude": "node", delay_name: "edge", rate_name: "edge"}
    text = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
    for name, kind in keys.items():
        text += f'<key id="{name}" for="{kind}" attr.name="{name}" attr.type="string"/>\n'
    text += '<graph edgedefault="undirected">\n'

    def datum(key: str, value: object) -> str:
        return f'<data key="{key}">{str(value).strip(chr(34))}</data>'

    for i, (lat, lon) in enumerate(located):
        text += f'<node id="{i}">{datum("Latitude", lat)}{datum("Longitude", lon)}</node>\n'
    for source, target, ms, mbit in written:
        text += f'<edge source="{source}" target="{target}">{datum(delay_name, ms)}{datum(rate_name, mbit)}</edge>\n'
    return File(text + "</graph></graphml>\n", values, ".graphml")


def read_edges(path: Path) -> Values:
    made = import_graph(path, path.with_name("made.yaml"), Defaults(100e6, 7e-3), strict=True).topology
    states = [link.state for link in list(made.links.values())[::2]]
    return [value for state in states for value in (state.delay_s * 1e3, state.rate_bps / 1e6)]


MATRIX_UNITS: tuple[tuple[str, str, float], ...] = (
    ("", "", 1.0),
    ("", " ms", 1.0),
    ("", " s", 1e-3),
    ("ms", "", 1.0),
    ("s", "", 1e-3),
    ("rtt_us", "", 1e3),
)


def write_matrix(rng: random.Random, mutation: str) -> File:
    count = rng.randint(2, 5)
    names = [f"n{i}" for i in range(count)]
    trips = {(a, b): number(rng, 20, 300) for a in range(count) for b in range(a)}
    corner, ending, factor = rng.choice(MATRIX_UNITS)
    values: Values | None = [trips[b, a] / 2 for a in range(count) for b in range(a + 1, count)]
    if mutation == "unit":
        corner, ending, factor, values = "", "", rng.choice((1e-3, 1e3)), None
    rows: list[list[object]] = []
    for a in range(count):
        cells: list[object] = [names[a]]
        for b in range(count):
            trip = trips.get((max(a, b), min(a, b)))
            value = None if trip is None else round(trip * factor, 7)
            cells.append("" if value is None else f"{value}{ending}" if ending else value)
        rows.append(cells)
    if mutation in ("huge", "letters"):
        a, b = rng.sample(range(count), 2)
        rows[a][b + 1], values = rng.choice(("1e300", "9" * 400, "4x0", "fast", "-7", "12 furlongs")), None
    if mutation == "swapped":
        rows[0][0], values = "elsewhere", None
    return File(table(rng, [corner, *names], rows), values, ".csv")


def read_delays(path: Path) -> Values:
    return [edge.delay_ms for edge in read_graph(path).edges]


def write_topology(rng: random.Random, mutation: str) -> File:
    rates, delays = [number(rng, 1, 900) for _ in range(3)], [number(rng, 1, 300) for _ in range(3)]
    values: Values | None = [value for pair in zip(rates, delays, strict=True) for value in pair]
    shown_rates, shown_delays = [f"{rate}mbit" for rate in rates], [f"{delay}ms" for delay in delays]
    if mutation in ("huge", "letters", "unit"):
        shown_delays[rng.randrange(3)] = {"huge": "1e300s", "letters": "1:30", "unit": "55"}[mutation]
        values = None
    if mutation == "swapped":
        shown_rates, shown_delays, values = shown_delays, shown_rates, None
    lines = [
        "# Zürich",
        "name: net",
        "sites:",
        "  a: &a {workers: 1}",
        "  b: {<<: *a, cpus: 0.5}",
        "  no: *a",
        "links:",
    ]
    for (x, y), rate, delay in zip((("a", "b"), ("b", '"no"'), ("a", '"no"')), shown_rates, shown_delays, strict=True):
        lines.append(f"  - {{between: [{x}, {y}], rate: {rate}, delay: {delay}}}")
    return File("\n".join(lines) + "\n", values, ".yaml")


def read_topology(path: Path) -> Values:
    links = Topology.load(path).links
    states = [links[name].state for name in ("a->b", "b->no", "a->no") if name in links]
    return [value for state in states for value in (state.rate_bps / 1e6, state.delay_s * 1e3)]


def yaml_number(rng: random.Random, value: float) -> str:
    """Write a number in one of the ways in which YAML 1.1, JSON and people do."""
    ways = [f"{value}", f"+{value}", f"{value:.7f}"]
    if value == int(value):
        ways = [f"{int(value)}", f"+{int(value)}", f"{int(value):_}", f"0x{int(value):x}", f"0b{int(value):b}"]
    return rng.choice(ways)


def yaml_time(rng: random.Random, seconds: float) -> str:
    """Write a time with a unit."""
    unit, factor = rng.choice((("s", 1.0), ("ms", 1e3), ("us", 1e6), ("min", 1 / 60)))
    text = f"{seconds * factor:.9f}{rng.choice(('', ' '))}{unit}"
    return rng.choice((text, f'"{text}"', f"'{text}'"))


def yaml_rate(rng: random.Random, mbit: float) -> str:
    """Write a rate with a unit."""
    unit, factor = rng.choice((("mbit", 1.0), ("kbit", 1e3), ("gbit", 1e-3), ("bit", 1e6)))
    return f"{mbit * factor:.9f}{unit}"


#: What a number is written as that no person takes for a number of the field, or takes for another one than YAML 1.1.
NO_NUMBERS = ("4x0", "fast", "1:30", "12 apples", "1,5", "0o17", "010", "yes", "2026-01-02", "[1]", "{}", "1.5.2")
HUGE = ("1.0e+300", "9" * 400, ".inf", ".nan", "-5", "1.0e+999", "-.inf")


def write_experiment(rng: random.Random, mutation: str) -> File:
    rounds, batch, seed, period = rng.randint(1, 5000), rng.randint(1, 512), rng.randint(0, 2**31), rng.randint(1, 9)
    scale, learning, step, margin = (number(rng, *ends) for ends in ((0.1, 2), (0.1, 2), (0.1, 9), (0.1, 0.9)))
    at, rate, delay = number(rng, 1, 60), number(rng, 1, 90), number(rng, 1, 300)
    values: Values | None = [rounds, batch, learning, step, seed, scale, period, margin, at, rate, delay]
    shown = {
        "rounds": yaml_number(rng, rounds),
        "batch": yaml_number(rng, batch),
        "learning": yaml_number(rng, learning),
        "step": yaml_time(rng, step),
        "seed": yaml_number(rng, seed),
        "scale": yaml_number(rng, scale),
        "period": yaml_time(rng, period),
        "margin": yaml_number(rng, margin),
        "at": yaml_time(rng, at),
        "rate": yaml_rate(rng, rate),
        "delay": yaml_time(rng, delay / 1e3),
    }
    if mutation in ("huge", "letters"):
        # No learning rate is too high to be read.
        name = rng.choice([name for name in shown if name != "learning" or mutation == "letters"])
        shown[name], values = rng.choice(HUGE if mutation == "huge" else NO_NUMBERS), None
    if mutation == "unit":
        name, values = rng.choice(("step", "period", "at", "rate", "delay")), None
        shown[name] = shown[name].strip("'\"").rstrip("abcdefghijklmnopqrstuvwxyz ") + rng.choice(("", " h", "S", "Mb"))
    if mutation == "swapped":
        (a, b), values = rng.choice((("rate", "delay"), ("step", "rate"))), None
        shown[a], shown[b] = shown[b], shown[a]
    lines = [
        rng.choice(("# Zürich", "---", "%YAML 1.1\n---", "")),
        "name: e",
        "train:",
        "  model: cnn   # the smallest",
        f"  rounds: {shown['rounds']}",
        f"  batch: {shown['batch']}",
        f"  optimizer: {{name: sgd, learning_rate: {shown['learning']}}}",
        f"compute: {{step_time: {shown['step']}}}",
        f"seed: {shown['seed']}",
        f"scale: {shown['scale']}",
        f"controller: {{period: {shown['period']}, margin: {shown['margin']}}}",
        "events:",
        f"- at: {shown['at']}",
        f"  change: {{link: paris->london, rate: {shown['rate']}, delay: {shown['delay']}}}",
        f"topology: {SMOKE}",  # last: without it the file is no experiment
    ]
    return File("\n".join(lines) + "\n", values, ".yaml")


def read_experiment(path: Path) -> Values:
    spec = Experiment.load(path).spec
    (event,) = spec.events
    assert event.change is not None and event.at is not None
    return [
        *(spec.own_train.rounds, spec.own_train.batch, spec.own_train.optimizer.learning_rate, spec.compute.step_time),
        *(spec.seed, spec.scale, spec.controller.period, spec.controller.margin),
        *(float(event.at), (event.change.rate or 0) / 1e6, (event.change.delay or 0) * 1e3),
    ]


def write_sweep(rng: random.Random, mutation: str) -> File:
    scales = sorted({number(rng, 0.1, 2) for _ in range(rng.randint(1, 4))})
    seeds = rng.sample(range(1, 99), rng.randint(1, 5))
    repeats, roots = rng.randint(1, 9), rng.randint(1, 4)
    values: Values | None = [*scales, roots, *seeds, repeats]
    shown_scales, shown_seeds = ([yaml_number(rng, each) for each in listed] for listed in (scales, seeds))
    shown_roots, shown_repeats = yaml_number(rng, roots), yaml_number(rng, repeats)
    if mutation in ("huge", "letters"):
        wrong, values = rng.choice(HUGE if mutation == "huge" else NO_NUMBERS), None
        if rng.random() < 0.5:
            shown_seeds[rng.randrange(len(seeds))] = f'"{wrong}"' if "," in wrong else wrong  # not two seeds
        else:
            shown_repeats = wrong
    if mutation in ("unit", "swapped"):
        values = None
        if rng.random() < 0.5:
            shown_seeds.append(shown_seeds[0])
        else:
            shown_scales.append(shown_scales[0])
    lines = [
        rng.choice(("# Zürich", "---", "")),
        "axes:",
        f"  scale: [{', '.join(shown_scales)}]",
        f"  plan: {{one: {{sync.policy: netstorm, sync.options: {{roots: {shown_roots}}}}}}}",
        rng.choice((f"seeds: [{', '.join(shown_seeds)}]", "\n- ".join(["seeds:", *shown_seeds]))),
        f"repeats: {shown_repeats}",
        "experiment: e.yaml",
        "name: s",
    ]
    return File("\n".join(lines) + "\n", values, ".yaml")


def read_sweep(path: Path) -> Values:
    """Return the values of a sweep. SpecError for one that is no number, as its experiment refuses it."""
    spec = Sweep.load(path).spec
    fields = [*spec.axes["scale"].values(), *spec.axes["plan"].values()]
    points = [each["scale"] if "scale" in each else each["sync.options"]["roots"] for each in fields]
    if not all(isinstance(point, int | float) for point in points):
        raise SpecError(path, [Fault("axes", "a point is no number", "a number")])
    return [*points, *spec.seeds, spec.repeats]


def write_hosts(rng: random.Random, mutation: str) -> File:
    octets = [[10, *(rng.randrange(256) for _ in range(3))] for _ in range(rng.randint(1, 5))]
    ports = [rng.randint(1, 65_535) for _ in octets]
    values: Values | None = [value for four, port in zip(octets, ports, strict=True) for value in (*four, port)]
    shown = [[".".join(map(str, four)), yaml_number(rng, port)] for four, port in zip(octets, ports, strict=True)]
    row = rng.choice(shown)
    if mutation in ("huge", "letters", "unit"):
        column, values = rng.randrange(2), None
        addresses = {"huge": ("10.0.0.999", "10.0.0.0.1"), "letters": ("ten", "010.0.0.1"), "unit": ("10.0.1", "10")}
        numbers = {"huge": HUGE, "letters": NO_NUMBERS, "unit": ("22/tcp", "22 s", "0", "65536")}
        row[column] = rng.choice((addresses, numbers)[column][mutation])
    if mutation == "swapped":
        row[0], row[1], values = row[1], row[0], None
    lines = [rng.choice(("# Zürich", "---", "")), "hosts:"]
    for place, (address, port) in enumerate(shown):
        way = rng.choice(("  h{}: {{address: {}, port: {}}}", "  h{}:\n    address: {}\n    port: {}"))
        lines.append(way.format(place, address, port))
    return File("\n".join([*lines, "name: c"]) + "\n", values, ".yaml", is_prefix=mutation == "truncated")


def read_hosts(path: Path) -> Values:
    hosts = Hosts.load(path).by_name.values()
    return [value for host in hosts for value in (*map(int, host.address.split(".")), host.port)]


def write_requirements(rng: random.Random, mutation: str) -> File:
    versions = [number(rng, 0, 30) for _ in range(rng.randint(1, 6))]
    lines = []
    for place, version in enumerate(versions):
        name = rng.choice((f"p{place}", f"P{place}.x_y", f"p{place}[extra, more]"))
        line = f"{name}{rng.choice(('==', ' == ', '==' + chr(92) + chr(10)))}{version}"
        lines.append(line + rng.choice(("", " # Zürich==9.99", "  ", ' ; python_version >= "3.9"')))
    values: Values | None = versions
    if mutation in ("letters", "huge", "unit", "swapped"):
        wrong = {
            "letters": ("-r no-such-file.txt", "--constraint=no-such-file.txt"),
            "huge": ("./" + "x" * 300, "-e " + "y/" * 3000),
            "unit": ("./project-0.tar.gz", "-e ./no-such-project", "file:///no/such/wheel-1-py3-none-any.whl"),
            "swapped": ("-r file.txt", "-c ./file.txt", "-e 'unclosed"),
        }[mutation]
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(wrong))
        values = None
    if rng.random() < 0.5:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(("# p9==9.99", "", "   # Zürich")))
    return File("\n".join(lines) + "\n", values, ".txt")


def read_requirements(path: Path) -> Values:
    """Return the versions in the file that pip is given. SpecError for one that is no number, as pip refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        listed = RequirementsFile.read(path).write(Path(folder), lambda project: project)
        versions = re.findall(r"==\s*(\S+)", listed.read_text(encoding="utf-8"))
    try:
        return [float(version) for version in versions]
    except ValueError as error:
        raise SpecError(path, [Fault("version", str(error), "a number")]) from None


#: Ways in which programs print a step with a loss and a rate of learning, each with what `write_printed` puts in.
PRINTED = (
    "step={step} loss={loss} lr={lr}",
    "step {step}: loss: {loss} | lr: {lr}",
    "{{'loss': {loss}, 'lr': {lr}, 'step': {step}}}",
    '{{"step": {step}, "loss": {loss}, "lr": {lr}}}',
    "| step {step} | loss {loss} | lr {lr} |",
    "\x1b[32mstep={step}\x1b[0m loss={loss}, lr={lr}",
    "  5%|#    | 5/99 [00:01<00:09, 9.1it/s, step={step}, loss={loss}, lr={lr}]",
    "INFO:root:step={step} loss=tensor({loss}) lr={lr}",
)


def write_printed(rng: random.Random, mutation: str) -> File:
    form, lines = rng.choice(PRINTED), []
    values: list[float | None] = []
    for _ in range(rng.randint(1, 6)):
        step, loss, rate = rng.randint(1, 999), number(rng, 0.1, 9), number(rng, 0.01, 2)
        values += [step, loss, rate]
        lines.append(form.format(step=step, loss=loss, lr=rate))
    wrong = {"huge": "9" * 5000, "letters": "0x1p3", "unit": "0,25", "swapped": "1.2.3"}.get(mutation)
    if wrong is not None:
        lines.append(form.format(step=1, loss=wrong, lr=wrong))
        values += [None] * 3
    return File("\n".join(["Zürich 12:30", *lines, "done in 3 s"]) + "\n", values, ".log")


def read_printed(path: Path) -> Values:
    """Return step, loss and rate of each line that names them; None three times where no figure of the line is read."""
    found: list[float | None] = []
    for line in read_text(path).splitlines():
        if "lr" not in line:
            continue
        figures = figures_in(line)
        if figures is None:
            found += [None] * 3
        else:
            found += [figures.step, figures.values.get("loss"), figures.values.get("lr")]
    return found


READERS = (
    Reader("csv", write_trace, lambda path: read_rows(read_trace(path).trace), is_table=True),
    Reader("speed", write_speed, lambda path: [cell for row in read_speeds(path) for cell in row], is_table=True),
    Reader("mahimahi", write_mahimahi, read_mahimahi),
    Reader("iperf3", write_iperf3, read_iperf3),
    Reader("pensieve", write_pensieve, read_pensieve),
    Reader("cellular", write_cellular, read_cellular, is_table=True),
    Reader("rtt-csv", write_rtt, read_rtt, is_table=True),
    Reader("ping", write_ping, read_ping),
    Reader("capture", write_capture, read_packets),
    Reader("gml", lambda rng, mutation: write_graph(rng, mutation, True), read_edges),
    Reader("graphml", lambda rng, mutation: write_graph(rng, mutation, False), read_edges),
    Reader("matrix", write_matrix, read_delays, is_table=True),
    Reader("topology", write_topology, read_topology),
    Reader("experiment", write_experiment, read_experiment),
    Reader("sweep", write_sweep, read_sweep),
    Reader("hosts", write_hosts, read_hosts),
    Reader("requirements", write_requirements, read_requirements),
    Reader("printed", write_printed, read_printed),
)


def mutated_table(rng: random.Random, mutation: str, text: str) -> str:
    """Return the text of a table after one of TABLE_MUTATIONS."""
    lines = text.splitlines()
    header = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    body = range(header + 1, len(lines))
    row = rng.choice(body)
    separator = next(each for each in ";\t," if each in re.sub(r'"[^"]*"', "", lines[header]))
    if mutation == "exchanged" and len(body) > 1:
        a, b = rng.sample(body, 2)
        lines[a], lines[b] = lines[b], lines[a]
    elif mutation == "ragged":
        cut = lines[row].rpartition(separator)[0]
        lines[row] = rng.choice((cut, lines[row] + separator + "7"))
    elif mutation == "mixed":
        other = rng.choice([each for each in ";\t," if each != separator])
        lines[row] = lines[row].replace(separator, other)
    elif mutation == "headless":
        del lines[header]
    elif mutation == "joined":
        lines += lines
    return "\n".join(lines) + "\n"


def spoiled(rng: random.Random, mutation: str, data: bytes) -> bytes:
    """Return a file's bytes after one of the faults that are the same in every form."""
    if mutation == "binary":
        return rng.choice(OTHERS) + rng.randbytes(200)
    if mutation == "bad bytes":
        place = rng.randrange(len(data))
        return data[:place] + rng.choice((b"\xff", b"\xe9", b"\0", b"\x80\x81")) + data[place:]
    return data


def try_one(reader: Reader, seed: int, folder: Path) -> None:
    rng = random.Random(f"{reader.name} {seed}")
    mutation = rng.choice(MUTATIONS + TABLE_MUTATIONS if reader.is_table else MUTATIONS)
    made = reader.write(rng, mutation)
    values, is_prefix = made.values, made.is_prefix
    if isinstance(made.text, str):
        text, newline = made.text, rng.choice(NEWLINES)
        if mutation in TABLE_MUTATIONS:
            text = mutated_table(rng, mutation, text)
        if mutation == "truncated":
            text, is_prefix = text[: rng.randrange(len(text))], True
        encoding = rng.choice(ENCODINGS) if reader.name != "graphml" else rng.choice(("utf-8", "utf-8-sig", "utf-16"))
        data = text.replace("\n", newline).encode(encoding)
        if encoding == "utf-16-be" and rng.random() < 0.5:
            data = b"\xfe\xff" + data
    else:
        data = made.text
        if mutation == "truncated":
            data, is_prefix = data[: rng.randrange(len(data))], True
    data = spoiled(rng, mutation, data)
    suffix, pack = rng.choice(list(PACKINGS.items()))
    data = pack(data)
    if mutation == "damaged" and suffix:
        data, values = data[: rng.randrange(8, len(data) - 8)], None
    path = folder / f"file{made.suffix}{suffix}"
    path.write_bytes(data)
    where = f"{reader.name}, seed {seed}, {mutation}, {path.name}"
    try:
        found = reader.read(path)
    except (TraceError, SpecError) as error:
        assert str(error).strip(), where
        assert "\n  File" not in str(error), where
        assert mutation != "same", f"{where}: refused, and a person can read it: {error}"
        return
    finally:
        path.unlink()
    if mutation == "binary":
        pytest.fail(f"{where}: took something else for its own")
    if mutation == "bad bytes":  # a person passes over them in a comment, or in a packet's data
        values = made.values
    assert values is not None, f"{where}: read {found} in a file that nobody can"
    if is_prefix:
        # What a file's end has cut is what stands there to everybody: the last line's values are not compared.
        found, values = found[: max(len(found) - 5, 0)], values[: max(len(found) - 5, 0)]
    assert len(found) == len(values), f"{where}: {found} for {values}"
    for there, right in zip(found, values, strict=True):
        if right is None or there is None:
            assert right is there or mutation == "bad bytes", f"{where}: {found} for {values}"
            continue
        assert there == pytest.approx(right, rel=OFF, abs=1e-6), f"{where}: {found} for {values}"


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(FEW), id="few"), pytest.param(range(FEW, FEW + MANY), id="many", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_file_is_read_as_a_person_does_or_refused(reader: Reader, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        try_one(reader, seed, tmp_path)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_what_is_something_else_is_named_for_what_it_is(reader: Reader, tmp_path: Path) -> None:
    suffix = reader.write(random.Random(1), "same").suffix
    for begin, kind in BINARY:
        if reader.name == "capture" and "capture" in kind:
            continue
        for pack in PACKINGS.values():
            path = tmp_path / f"file{suffix}"
            path.write_bytes(pack(begin + bytes(100)))
            with pytest.raises((TraceError, SpecError)) as caught:
                reader.read(path)
            assert kind in str(caught.value)
            assert str(path) in str(caught.value) or reader.name == "capture"
