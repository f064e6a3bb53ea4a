"""What iperf3 measured, as `iperf3 --json` writes it: the intervals' sums over all streams.

iperf3 counts what programs received. A link's rate counts frames, so the headers are added, that the same test over a
link with this trace measures the same: of TCP 1,448 bytes travel in a frame of 1,514, of UDP one datagram with 42
more, and 34 for each further fragment of a long one. The round trips in the file are those of a filled queue, not the
link's, and are left out.

What a sender counts is what it handed over, not what came through: of a sender's file the receiver's part is taken
(`--get-server-output`), or where as much arrived as was sent its own. Else it is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from testbed.link import MTU_FRAME_BYTES
from testbed.trace.resample import LEAST_STEP_S, Resampled, resample
from testbed.trace.trace import TraceError
from testbed.trace.volume import Volume

#: Bytes that a program gets of a full frame: 1,514 less Ethernet's 14, IP's 20, TCP's 20 and its timestamps' 12.
TCP_PAYLOAD_BYTES = MTU_FRAME_BYTES - 66
UDP_HEADER_BYTES = 8
#: Ethernet and IP, in each frame; a fragment carries 1,480 bytes.
FRAGMENT_HEADER_BYTES = 34
FRAGMENT_PAYLOAD_BYTES = MTU_FRAME_BYTES - FRAGMENT_HEADER_BYTES

#: Between what was sent and what arrived: a sender's buffer at a test's end is more than that in a short test.
MOST_DIFFERENCE = 0.01

#: A day; a longer test is a slip, or not from iperf3.
MOST_SECONDS = 86_400.0
#: What a file's number of bytes an interval is at most: 100 Gbit/s for a day.
MOST_BYTES = 1.08e15


def parse_iperf3(text: str) -> Volume:
    """What was delivered, in bytes of frames, from the first interval that counts on; TraceError says where."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"line {error.lineno}: is not JSON ({error.msg}); write the file with `iperf3 --json`, not --json-stream",
            line=error.lineno,
            rule="json",
        ) from None
    except (ValueError, RecursionError):  # a whole number of thousands of digits; brackets thousands deep
        raise TraceError("is not JSON that iperf3 writes; write the file with `iperf3 --json`", rule="json") from None
    if not isinstance(document, dict):
        raise TraceError("is not of iperf3: it holds no JSON object; write the file with `iperf3 --json`", rule="json")
    if "error" in document:
        text = f"records a test that failed: {str(document['error'])[:200]}; repeat it"
        raise TraceError(text, rule="failed", given=document["error"])
    factor = _frame_factor(document)
    edges, bytes_ = _intervals(_of_receiver(document))
    return Volume.of_steps(edges, [each * factor for each in bytes_])


def _of_receiver(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the receiver measured, or the sender's document where as much arrived as it sent."""
    if not _is_sender_s(document):
        return document
    other = document.get("server_output_json")
    if isinstance(other, dict) and not _is_sender_s(other):
        return other
    if (arrived := _share_arrived(document)) is None:
        if not _is_udp(document):
            return document
        found = "and not what arrived"
    elif abs(1 - arrived) <= MOST_DIFFERENCE:
        return document
    else:
        found = f"of which {arrived:.1%} arrived"
    remedy = "take the file of the receiving end (`iperf3 -s --json`), or measure with --get-server-output or -R"
    raise TraceError(f"intervals: tell what was sent, {found}; {remedy}", rule="sender", field="intervals")


def _is_sender_s(document: Mapping[str, Any]) -> bool:
    """Return whether the intervals are those of the end that sent. Of UDP a receiver tells of losses and jitter."""
    intervals, start = document.get("intervals"), document.get("start")
    first = intervals[0] if isinstance(intervals, list) and intervals else None
    sums = first.get("sum") if isinstance(first, dict) else None
    if not isinstance(sums, dict):
        return False
    if isinstance(said := sums.get("sender"), bool):
        return said
    if _is_udp(document):
        return "lost_packets" not in sums and "jitter_ms" not in sums
    test = start.get("test_start") if isinstance(start, dict) else None
    reverse = isinstance(test, dict) and test.get("reverse") in (1, True)
    return isinstance(start, dict) and "connecting_to" in start and not reverse


def _is_udp(document: Mapping[str, Any]) -> bool:
    start = document.get("start")
    test = start.get("test_start") if isinstance(start, dict) else None
    return isinstance(test, dict) and test.get("protocol") == "UDP"


def _share_arrived(document: Mapping[str, Any]) -> float | None:
    """Return what part of what was sent arrived, as the test's end says; None where it says nothing."""
    end = document.get("end")
    if not isinstance(end, dict):
        return None
    for name in ("sum_received", "sum"):
        sums = end.get(name)
        if isinstance(sums, dict) and "lost_packets" in sums and _positive(sums.get("packets")):
            lost = _number(sums, f"end.{name}", "lost_packets", MOST_BYTES)
            return 1 - lost / _number(sums, f"end.{name}", "packets", MOST_BYTES)
    sent, received = end.get("sum_sent"), end.get("sum_received")
    if not (isinstance(sent, dict) and isinstance(received, dict)):
        return None
    if not (_positive(sent.get("bytes")) and _positive(received.get("bytes"))):
        return None
    arrived = _number(received, "end.sum_received", "bytes", MOST_BYTES)
    return arrived / _number(sent, "end.sum_sent", "bytes", MOST_BYTES)


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def resampled(volume: Volume, step_s: float | None = None) -> Resampled:
    """As rates, by default in steps of the median interval to the millisecond. TraceError as `resample` says."""
    if step_s is None:
        step_s = max(round(median(after - before for before, after in pairwise(volume.edges_s)), 3), LEAST_STEP_S)
    return resample(volume, step_s)


def _intervals(document: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Edges in seconds from 0, and the bytes between them."""
    intervals = document.get("intervals")
    if not isinstance(intervals, list) or not intervals:
        raise TraceError(
            "has no `intervals`; write the file with `iperf3 --json`, and an interval (-i) above 0",
            rule="missing",
            field="intervals",
        )
    edges: list[float] = []
    bytes_: list[float] = []
    for number, interval in enumerate(intervals):
        field = f"intervals.{number}.sum"
        sums = interval.get("sum") if isinstance(interval, dict) else None
        if not isinstance(sums, dict):
            raise TraceError(f"{field}: is missing; write the file with `iperf3 --json`", rule="missing", field=field)
        if sums.get("omitted") is True:
            continue
        start, end = (_number(sums, field, name, MOST_SECONDS) for name in ("start", "end"))
        if not edges:
            edges.append(start)
        if end <= edges[-1]:
            raise TraceError(
                f"{field}.end: {end:g} s does not come after {edges[-1]:g} s; times must rise",
                rule="order",
                field=f"{field}.end",
                given=end,
            )
        edges.append(end)
        bytes_.append(_number(sums, field, "bytes", MOST_BYTES))
    if not bytes_:
        raise TraceError("has only omitted intervals; test for longer than --omit", rule="omitted", field="intervals")
    return [edge - edges[0] for edge in edges], bytes_


def _frame_factor(document: Mapping[str, Any]) -> float:
    """Bytes of frames for each byte that a program received."""
    if not _is_udp(document):
        return MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES
    test = document["start"]["test_start"]
    length = _number(test, "start.test_start", "blksize", 65_507)
    if length < 1:
        raise TraceError(
            "start.test_start.blksize: 0 bytes make no datagram; give the length used",
            rule="range",
            field="start.test_start.blksize",
            given=length,
        )
    datagram = length + UDP_HEADER_BYTES
    fragments = math.ceil(datagram / FRAGMENT_PAYLOAD_BYTES)
    return (datagram + fragments * FRAGMENT_HEADER_BYTES) / length


def _number(fields: Mapping[str, Any], place: str, name: str, most: float) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(
            f"{place}.{name}: {str(value)[:40]!r} is not a number; write the file with `iperf3 --json`",
            rule="number",
            field=f"{place}.{name}",
            given=value,
        )
    if not (0 <= value <= most and math.isfinite(value)):
        raise TraceError(
            f"{place}.{name}: must be between 0 and {most:g}", rule="range", field=f"{place}.{name}", given=value
        )
    return float(value)
