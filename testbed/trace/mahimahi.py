"""Mahimahi's packet-delivery files: each line is a millisecond at which one packet of 1,500 bytes may leave.

    0
    3
    3
    10

A millisecond may come several times. At the last line's time the file begins again: here 4 packets each 10 ms. Empty
lines, and lines that begin with `#`, are passed over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.atomic_file import write_text
from testbed.link import MTU_FRAME_BYTES, Opportunities
from testbed.trace.resample import Resampled, Volume, resample
from testbed.trace.text import numbered
from testbed.trace.trace import Trace, TraceError

#: The length of a row where none is asked for: a replay of many links keeps up with it.
STEP_S = 0.1

#: The most digits of a time: 12 are thirty years.
MOST_DIGITS = 12

#: The most packets of a file: 60 MB, 24 s of 5 Gbit/s. To write this many takes ten seconds and half a gigabyte.
MOST_PACKETS = 10_000_000


@dataclass(frozen=True, slots=True)
class DeliverySchedule:
    """The milliseconds at which one full packet may leave, in time order; the last is also the period of the loop.

    A packet of 1,500 bytes is a frame of 1,514 on the link, whose rate counts frames.

    Raises:
        TraceError: There are no times, or all are 0.
    """

    milliseconds: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.milliseconds:
            text = "the file has no lines; write one for each packet, the millisecond at which it may leave"
            raise TraceError(text, rule="empty")
        if self.milliseconds[-1] == 0:
            text = "the last line is 0 ms, at which the file begins again; write a time above 0"
            raise TraceError(text, rule="no-time")

    @property
    def duration_s(self) -> float:
        """The period of the loop."""
        return self.milliseconds[-1] / 1e3

    def by(self, time_s: float) -> float:
        """Return the bytes of frames that may leave before `time_s`; from `duration_s` on, those of all frames."""
        if time_s >= self.duration_s:
            return float(len(self.milliseconds) * MTU_FRAME_BYTES)
        moment = round(time_s * 1e3, 6)  # 3 × 0.1 s is a hair above 300 ms
        return float(bisect_left(self.milliseconds, moment) * MTU_FRAME_BYTES)

    def resampled(self, step_s: float = STEP_S) -> Resampled:
        """Return the schedule as rates, with its single opportunities beside them. Raises as `resample`."""
        made = resample(self, step_s)
        return replace(made, trace=replace(made.trace, opportunities=Opportunities(self.milliseconds)))


def parse_mahimahi(lines: Sequence[str]) -> DeliverySchedule:
    """Return the schedule in the lines of a file. Raises TraceError with the line."""
    moments: list[int] = []
    for number, line in numbered(lines):
        digits = line.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS):
            text = f"{digits[:40]!r} is not a time; write a whole number of milliseconds"
            raise TraceError(text, rule="number", given=digits).at_line(number)
        moments.append(int(digits))
        if len(moments) > 1 and moments[-1] < moments[-2]:
            text = f"{moments[-1]} ms comes after {moments[-2]} ms; sort the lines"
            raise TraceError(text, rule="order").at_line(number)
    return DeliverySchedule(tuple(moments))


def schedule_of(trace: Trace) -> DeliverySchedule:
    """Return one lap of a trace as packets: each may leave once the trace has carried it, the last one at the end.

    The number of packets is rounded, so the sum is within half a packet.

    Raises:
        TraceError: A row has no rate, or the lap carries less than one packet or more than ten million.
    """
    volume = Volume.of_trace(trace)
    packets = round(volume.total[-1] / MTU_FRAME_BYTES)
    if packets == 0:
        raise TraceError("the trace carries no packet; take a longer trace or a higher rate", rule="no-packet")
    if packets > MOST_PACKETS:
        text = f"the trace carries {packets:g} packets, over {MOST_PACKETS}; take a shorter trace or a lower rate"
        raise TraceError(text, rule="too-many", given=packets)
    share = volume.total[-1] / packets
    # The last line is the period of the loop, so it is the trace's end also where the trace ends in an outage.
    end = _millisecond(volume.duration_s)
    return DeliverySchedule((*_moments(volume, (share * i for i in range(1, packets))), end))


def _moments(volume: Volume, totals: Iterable[float]) -> Iterable[int]:
    """Yield the millisecond by which each of the rising totals was delivered; all are below the volume's whole."""
    i = 0
    for total in totals:
        while volume.total[i + 1] < total:
            i += 1
        low, high = volume.total[i], volume.total[i + 1]
        start, stop = volume.edges_s[i], volume.edges_s[i + 1]
        yield _millisecond(start + (total - low) / (high - low) * (stop - start))


def _millisecond(time_s: float) -> int:
    """Return a time in milliseconds, rounded up."""
    return -int(-round(time_s * 1e3, 6) // 1)


def write_mahimahi(path: Path, schedule: DeliverySchedule) -> None:
    """Write a packet-delivery file. The format has no comments."""
    write_text(path, "".join(f"{moment}\n" for moment in schedule.milliseconds))
