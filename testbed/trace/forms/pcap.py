"""The rate over time of a capture's packets: of all, or of one flow."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from testbed.trace.forms.flow import Flow
from testbed.trace.forms.packets import Packet, read_packets
from testbed.trace.importing import ImportedTrace
from testbed.trace.resample import resample
from testbed.trace.text import open_bytes
from testbed.trace.trace import TraceError, naming_file

#: The length of a row where none is asked for.
STEP_S = 0.1
#: The most packets of a capture; this many take a minute, and a quarter of a gigabyte.
MOST_PACKETS = 10_000_000
#: How many flows describe a capture.
LARGEST = 5


@dataclass(frozen=True, slots=True)
class FrameArrivals:
    """Frames by the time of their arrival, in seconds from the first; `total[i]` bytes came before the i-th."""

    times_s: Sequence[float]
    total: Sequence[int]

    @property
    def duration_s(self) -> float:
        """The time of the last frame."""
        return self.times_s[-1]

    def by(self, time_s: float) -> float:
        """Return the bytes of frames that came before `time_s`; from `duration_s` on, those of all frames."""
        return float(self.total[-1] if time_s >= self.duration_s else self.total[bisect_left(self.times_s, time_s)])


@dataclass(frozen=True, slots=True)
class Capture:
    """The frames of a capture, or of one flow in it, by time; and the largest of its flows."""

    arrivals: FrameArrivals
    #: How many frames were wanted.
    packets: int
    #: The largest of all the capture's flows, with their shares of the bytes.
    largest: tuple[tuple[Flow, float], ...]


def import_capture(path: Path, step_s: float = STEP_S, flow: Flow | None = None) -> list[ImportedTrace]:
    """Return the rate of a capture's packets, or of the packets of one flow, in rows of `step_s` seconds."""
    with naming_file(path):
        found = read_capture(path, flow)
        made = resample(found.arrivals, step_s)
    counted = f"{found.packets} packets of {flow or 'all flows'}, in steps of {step_s:g} s"
    largest = ", ".join(f"{one} {share:.0%}" for one, share in found.largest)
    comments = (counted, *([f"largest flows, of all bytes: {largest}"] if largest else []))
    return [ImportedTrace(made.trace, comments).named_after(path, "pcap")]


def read_capture(path: Path, wanted: Flow | None = None) -> Capture:
    """Return the packets in a file: of the wanted flow, or all. TraceError where the file can't be read."""
    try:
        with open_bytes(path) as file:
            return arrivals_of(read_packets(file), wanted)
    except FileNotFoundError:
        raise TraceError("the capture does not exist; check the path", rule="missing") from None
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"the capture can't be read: {error}", rule="unreadable") from None


def arrivals_of(packets: Iterable[Packet], wanted: Flow | None = None) -> Capture:
    """Return the packets of the wanted flow, or all. TraceError where they are too few or too many."""
    times, sizes, flows = array("q"), array("q"), Counter[Flow]()
    for number, packet in enumerate(packets, 1):
        if number > MOST_PACKETS:
            text = f"the capture has over {MOST_PACKETS} packets; take a part of it (`editcap -i 600 FILE PART`)"
            raise TraceError(text, rule="too-many")
        flow = Flow.of_packet(packet.ip)
        if flow is not None:
            flows[flow] += packet.frame_bytes
        if wanted is None or (flow is not None and wanted.matches(flow)):
            times.append(packet.time_ns)
            sizes.append(packet.frame_bytes)
    if wanted is not None and not times:
        there = ", ".join(str(flow) for flow, _ in flows.most_common(LARGEST)) or "none"
        text = f"the capture has no packet of {wanted}; its largest flows are {there}"
        raise TraceError(text, rule="no-packet", given=there)
    if len(times) < 2 or min(times) == max(times):
        text = f"the capture has {len(times)} packets and no time between them; take a longer capture"
        raise TraceError(text, rule="no-time", given=len(times))
    order = sorted(range(len(times)), key=times.__getitem__)
    began_ns = times[order[0]]
    all_bytes = sum(flows.values())
    largest = tuple((flow, count / all_bytes) for flow, count in flows.most_common(LARGEST) if count)
    arrivals = FrameArrivals(
        array("d", ((times[number] - began_ns) / 1e9 for number in order)),
        array("q", accumulate((sizes[number] for number in order), initial=0)),
    )
    return Capture(arrivals, len(times), largest)
