"""The rate that iperf3 measured, as `iperf3 --json` writes it: the intervals' sums over all streams.

iperf3 counts what programs received, a link's rate counts frames. So the headers are added: then the same test over a
link with this trace measures the same again. 1,448 bytes of TCP travel in a frame of 1,514. A UDP datagram has 42 bytes
more than its data, and 34 for each further fragment of a long one. The file's round trips are of a filled queue, not of
the link, and are left out.

A sender's intervals count what it handed over, not what came through. For a sender's file, the receiver's part is taken
(`--get-server-output`), or the sender's own where as much arrived as was sent. Other senders' files are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.trace.forms import Form, ImportedTrace
from testbed.trace.resample import LEAST_STEP_S, Resampled, Volume, resample
from testbed.trace.trace import TraceError

UDP_HEADER_BYTES = 8
#: Ethernet and IP, in each frame; a fragment carries 1,480 bytes.
FRAGMENT_HEADER_BYTES = 34
FRAGMENT_PAYLOAD_BYTES = MTU_FRAME_BYTES - FRAGMENT_HEADER_BYTES

#: The share by which the bytes sent and those that arrived may differ: a sender's buffer at the end of a test is more
#: than that in a short test.
MOST_DIFFERENCE = 0.01

#: A day; a longer test is a slip, or not from iperf3.
MOST_SECONDS = 86_400.0
#: The most bytes of an interval: 100 Gbit/s for a day.
MOST_BYTES = 1.08e15

#: The remedy for a file that iperf3 did not write.
WRITE = "write the file with `iperf3 --json`"


def parse_iperf3(text: str) -> Volume:
    """Return the bytes of frames that were delivered, from the first interval that is not omitted on.

    Raises TraceError where the text is not of iperf3, or says only what was sent; the error names the JSON's field.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        wrong = f"the file is not JSON ({error.msg}); {WRITE}, not --json-stream"
        raise TraceError(wrong, rule="json").at_line(error.lineno) from None
    except (ValueError, RecursionError):  # a whole number of thousands of digits; brackets thousands deep
        raise TraceError(f"the file is not JSON of iperf3; {WRITE}", rule="json") from None
    if not isinstance(document, dict):
        raise TraceError(f"the file holds no JSON object, so it is not of iperf3; {WRITE}", rule="json")
    if "error" in document:
        wrong = f"the test failed: {str(document['error'])[:200]}; repeat it"
        raise TraceError(wrong, rule="failed", given=document["error"])
    factor = _frame_factor(document)
    edges, bytes_ = _intervals(_of_receiver(document))
    return Volume.of_steps(edges, [each * factor for each in bytes_])


def resampled(volume: Volume, step_s: float | None = None) -> Resampled:
    """Return the volume as rates, by default in steps of the median interval to the millisecond.

    Raises:
        TraceError: As `resample` does.
    """
    if step_s is None:
        step_s = max(round(median(after - before for before, after in pairwise(volume.edges_s)), 3), LEAST_STEP_S)
    return resample(volume, step_s)


def _of_receiver(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the receiver's document, or the sender's where as much arrived as was sent."""
    if not _is_sender_s(document):
        return document
    other = document.get("server_output_json")
    if isinstance(other, dict) and not _is_sender_s(other):
        return other
    if (arrived := _share_arrived(document)) is None:
        if not _is_udp(document):
            return document
        found = "not what arrived"
    elif abs(1 - arrived) <= MOST_DIFFERENCE:
        return document
    else:
        found = f"of which {arrived:.1%} arrived"
    remedy = "take the file of the receiving end (`iperf3 -s --json`), or measure with --get-server-output or -R"
    raise TraceError(f"the intervals count what was sent, {found}; {remedy}", rule="sender", field="intervals")


def _is_sender_s(document: Mapping[str, Any]) -> bool:
    """Return whether the intervals are the sender's. A receiver of UDP counts losses and jitter in them."""
    intervals, start = document.get("intervals"), document.get("start")
    first = intervals[0] if isinstance(intervals, list) and intervals else None
    sums = first.get("sum") if isinstance(first, dict) else None
    if not isinstance(sums, dict):
        return False
    if isinstance(flag := sums.get("sender"), bool):
        return flag
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
    """Return the share of the bytes sent that arrived, by the end of the test; None where the file does not say it."""
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


def _intervals(document: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    intervals = document.get("intervals")
    if not isinstance(intervals, list) or not intervals:
        text = f"the file has no `intervals`; {WRITE} and an interval (-i) above 0"
        raise TraceError(text, rule="missing", field="intervals")
    edges: list[float] = []
    bytes_: list[float] = []
    for number, interval in enumerate(intervals):
        field = f"intervals.{number}.sum"
        sums = interval.get("sum") if isinstance(interval, dict) else None
        if not isinstance(sums, dict):
            raise TraceError(f"{field} is missing; {WRITE}", rule="missing", field=field)
        if sums.get("omitted") is True:
            continue
        start, end = (_number(sums, field, name, MOST_SECONDS) for name in ("start", "end"))
        if not edges:
            edges.append(start)
        if end <= edges[-1]:
            text = f"{field}.end is {end:g} s after {edges[-1]:g} s; times must rise"
            raise TraceError(text, rule="order", field=f"{field}.end", given=end)
        edges.append(end)
        bytes_.append(_number(sums, field, "bytes", MOST_BYTES))
    if not bytes_:
        text = "all intervals are omitted; test for longer than --omit"
        raise TraceError(text, rule="omitted", field="intervals")
    return [edge - edges[0] for edge in edges], bytes_


def _frame_factor(document: Mapping[str, Any]) -> float:
    """Return the bytes of frames for each byte that a program received."""
    if not _is_udp(document):
        return MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES
    place = "start.test_start"
    length = _number(document["start"]["test_start"], place, "blksize", 65_507)
    if length < 1:
        text = f"{place}.blksize is {length:g}; write the bytes of a datagram, 1 or more"
        raise TraceError(text, rule="range", field=f"{place}.blksize", given=length)
    datagram = length + UDP_HEADER_BYTES
    fragments = math.ceil(datagram / FRAGMENT_PAYLOAD_BYTES)
    return (datagram + fragments * FRAGMENT_HEADER_BYTES) / length


def _number(fields: Mapping[str, Any], place: str, name: str, most: float) -> float:
    value, field = fields.get(name), f"{place}.{name}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(f"{field} is {str(value)[:40]!r}, no number; {WRITE}", rule="number", field=field, given=value)
    if not (0 <= value <= most and math.isfinite(value)):
        raise TraceError(f"{field} is out of range; write 0 to {most:g}", rule="range", field=field, given=value)
    return float(value)


def _imported(text: str, step_s: float | None) -> list[ImportedTrace]:
    made = resampled(parse_iperf3(text), step_s)
    left_out = ["the other direction is left out (--bidir)"] if '"sum_bidir_reverse"' in text else []
    return [ImportedTrace(made.trace, (f"in steps of {made.step_s:g} s", *left_out))]


FORM = Form("iperf3", "Output of `iperf3 --json`: the rate.", _imported, step="length of a row; default: the interval")
