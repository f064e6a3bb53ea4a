"""Mahimahi's packet-delivery files: each line is a millisecond at which one packet of 1,500 bytes may leave.

    0
    3
    3
    10

A millisecond may come several times. At the last line's time the file begins again: here 4 packets each 10 ms. Empty
lines and those that begin with `#` say nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from testbed.atomic_file import write_text
from testbed.link import MTU_FRAME_BYTES, Opportunities
from testbed.trace.resample import Resampled, resample
from testbed.trace.text import numbered
from testbed.trace.trace import Trace, TraceError
from testbed.trace.volume import Volume

#: The step of a trace made of such a file, where none is asked for: what a replay of many links holds with ease.
STEP_S = 0.1

#: Thirty years; more digits are a slip.
MOST_DIGITS = 12

#: What a file may have: 60 MB, 24 s of 5 Gbit/s. As many take ten seconds and half a gigabyte to write.
MOST_PACKETS = 10_000_000


@dataclass(frozen=True, slots=True)
class DeliverySchedule:
    """The milliseconds at which one full packet may leave, in time order; the last is also the period of the loop.

    A packet of 1,500 bytes is a frame of 1,514 on the link, whose rate counts frames.
    Raises TraceError when there are none, they go back in time, or all are 0.
    """

    milliseconds: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.milliseconds:
            raise TraceError(
                "has no lines; write one for each packet, the millisecond at which it may leave", rule="empty"
            )
        for i, (before, after) in enumerate(pairwise((0, *self.milliseconds)), 1):
            if after < before:
                raise TraceError(
                    f"line {i}: {after} ms comes after {before} ms; sort the lines", line=i, rule="order", given=after
                )
        if self.milliseconds[-1] == 0:
            raise TraceError(
                "lasts no time: its last line, which is when it begins again, must be above 0", rule="no-time"
            )

    @property
    def duration_s(self) -> float:
        """The period of the loop."""
        return self.milliseconds[-1] / 1e3

    def by(self, time_s: float) -> float:
        """Bytes of frames that may have left before `time_s`; those of the last millisecond belong to the end."""
        if time_s >= self.duration_s:
            return float(len(self.milliseconds) * MTU_FRAME_BYTES)
        moment = round(time_s * 1e3, 6)  # 3 × 0.1 s is a hair above 300 ms
        return float(bisect_left(self.milliseconds, moment) * MTU_FRAME_BYTES)

    def resampled(self, step_s: float = STEP_S) -> Resampled:
        """The schedule as rates, and beside them as it is. TraceError as `resample` says."""
        made = resample(self, step_s)
        return replace(made, trace=replace(made.trace, opportunities=Opportunities(self.milliseconds)))


def parse_mahimahi(lines: Sequence[str]) -> DeliverySchedule:
    """The schedule in the lines of a file; TraceError names the line."""
    moments: list[int] = []
    for number, line in numbered(lines):
        digits = line.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS):
            raise TraceError(
                f"line {number}: {digits[:40]!r} is not a time; write a whole number of milliseconds",
                line=number,
                rule="number",
                given=digits,
            )
        moments.append(int(digits))
        if len(moments) > 1 and moments[-1] < moments[-2]:
            text = f"line {number}: {moments[-1]} ms comes after {moments[-2]} ms; sort the lines"
            raise TraceError(text, line=number, rule="order")
    return DeliverySchedule(tuple(moments))


def schedule_of(trace: Trace) -> DeliverySchedule:
    """One lap of a trace as packets: each may leave once the trace has carried it, the last one at the end.

    The number of packets is rounded, so the sum is within half a packet. TraceError where a row has no rate, or less
    than one packet or more than ten million are carried.
    """
    volume = Volume.of_trace(trace)
    packets = round(volume.total[-1] / MTU_FRAME_BYTES)
    if packets == 0:
        raise TraceError("carries no packet; take a longer trace or a higher rate", rule="no-packet")
    if packets > MOST_PACKETS:
        raise TraceError(
            f"carries {packets:g} packets, over {MOST_PACKETS}; take a shorter trace or a lower rate",
            rule="too-many",
            given=packets,
        )
    share = volume.total[-1] / packets
    return DeliverySchedule(tuple(_moments(volume, (share * i for i in range(1, packets + 1)))))


def _moments(volume: Volume, totals: Iterable[float]) -> Iterable[int]:
    """The millisecond, rounded up, by which each of the rising totals was delivered."""
    i = 0
    for total in totals:
        while i < len(volume.total) - 2 and volume.total[i + 1] < total:
            i += 1
        low, high = volume.total[i], volume.total[i + 1]
        start, stop = volume.edges_s[i], volume.edges_s[i + 1]
        time_s = start + min((total - low) / (high - low), 1.0) * (stop - start)
        yield -int(-round(time_s * 1e3, 6) // 1)


def write_mahimahi(path: Path, schedule: DeliverySchedule) -> None:
    """Write the file; the format has no comments."""
    write_text(path, "".join(f"{moment}\n" for moment in schedule.milliseconds))
