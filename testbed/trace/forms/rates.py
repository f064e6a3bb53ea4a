"""The rate of a capture's packets over time: of all, or of one flow."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from testbed.trace.forms.capture import Packet, capture_packets
from testbed.trace.forms.flow import Flow
from testbed.trace.trace import TraceError

#: As many take a minute, and a quarter of a gigabyte.
MOST_PACKETS = 10_000_000
#: How many flows a capture is described by.
LARGEST = 5


@dataclass(frozen=True, slots=True)
class FrameArrivals:
    """Frames by the time of their arrival, in seconds from the first; `total[i]` bytes came before the i-th."""

    times_s: Sequence[float]
    total: Sequence[int]

    @property
    def duration_s(self) -> float:
        return self.times_s[-1]

    def by(self, time_s: float) -> float:
        """Bytes of frames that came before `time_s`; those of the last moment belong to the end."""
        return float(self.total[-1] if time_s >= self.duration_s else self.total[bisect_left(self.times_s, time_s)])


@dataclass(frozen=True, slots=True)
class Capture:
    """What was wanted of a capture, and the largest of all its flows, with their shares of the bytes."""

    arrivals: FrameArrivals
    packets: int
    largest: tuple[tuple[Flow, float], ...]


def read_capture(path: Path, wanted: Flow | None = None) -> Capture:
    """The packets of the flow that is wanted, or all, in a file. TraceError where it cannot be read as a capture."""
    return arrivals_of(capture_packets(path), wanted)


def arrivals_of(packets: Iterable[Packet], wanted: Flow | None = None) -> Capture:
    """The packets of the flow that is wanted, or all. TraceError where there are too few or too many."""
    times, sizes, flows = array("q"), array("q"), Counter[Flow]()
    for number, packet in enumerate(packets, 1):
        if number > MOST_PACKETS:
            raise TraceError(
                f"has over {MOST_PACKETS} packets; take a part of it (`editcap -i 600 FILE PART`)", rule="too-many"
            )
        flow = Flow.of_packet(packet.ip)
        if flow is not None:
            flows[flow] += packet.frame_bytes
        if wanted is None or (flow is not None and wanted.matches(flow)):
            times.append(packet.time_ns)
            sizes.append(packet.frame_bytes)
    if wanted is not None and not times:
        there = ", ".join(str(flow) for flow, _ in flows.most_common(LARGEST)) or "none"
        raise TraceError(f"has no packet of {wanted}; its largest flows: {there}", rule="no-packet", given=there)
    if len(times) < 2 or min(times) == max(times):
        raise TraceError(
            f"has {len(times)} packets, and no time between them; take a longer capture",
            rule="no-time",
            given=len(times),
        )
    order = sorted(range(len(times)), key=times.__getitem__)
    began_ns = times[order[0]]
    all_bytes = sum(flows.values())
    largest = tuple((flow, count / all_bytes) for flow, count in flows.most_common(LARGEST) if count)
    arrivals = FrameArrivals(
        array("d", ((times[number] - began_ns) / 1e9 for number in order)),
        array("q", accumulate((sizes[number] for number in order), initial=0)),
    )
    return Capture(arrivals, len(times), largest)
