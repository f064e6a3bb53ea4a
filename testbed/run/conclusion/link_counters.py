"""Checks by the kernel's byte counters at the links' ends that no traffic bypassed the shaper. Pure.

A shaper does not see traffic that bypasses it, because a rule was deleted or a queue replaced; the kernel's counters
do. They are compared with the rate (`rate_excess`), and with the shaper's own counters (`bypassed_bytes`), which also
finds bursts that carry no more in three seconds than the rate allows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

Record = Mapping[str, Any]

#: Samples in a window: over three seconds, a sample that a busy host takes late counts little.
WINDOW = 3
#: The most by which two samples may be further apart than their times say.
LOOK_S = 0.1
#: A super-packet (segmentation offload), which arrives at once.
SUPER_PACKET_BITS = 8 * 65_536


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Three readings of each link's byte counters: the kernel's, between two of the shaper's.

    All map a link to its bytes since it was made.
    """

    #: The shaper's counters, read just before the kernel's.
    before: Mapping[str, int]
    #: The kernel's counters at the links' ends.
    arrived: Mapping[str, int]
    #: The shaper's counters, read just after the kernel's.
    after: Mapping[str, int]


def bypassed_bytes(first: CounterReading, last: CounterReading) -> dict[str, int]:
    """Return, by link, the bytes that arrived between two readings and can't have passed the shaper.

    Links with at most one super-packet of such bytes are left out. The shaper counts the headers of each frame, the
    kernel only those of the super-packet, so the kernel never counts more bytes of shaped traffic than the shaper did
    from before the first reading to after the last.
    """
    found = {}
    for link, arrived in _grown(first.arrived, last.arrived):
        if link in first.before and last.after.get(link, -1) >= first.before[link]:
            beside = arrived - (last.after[link] - first.before[link])
            if 8 * beside > SUPER_PACKET_BITS:
                found[link] = beside
    return found


def rate_excess(samples: Sequence[Record], states: Sequence[Record]) -> dict[str, float]:
    """Return, by link, the relative excess of the bytes that arrived over the link's rate, in its worst window.

    A window is WINDOW samples long. It is compared with the highest rate in force during it, and for the same time and
    the link's delay before it, when the bytes that arrive may have been sent. Where the delay fell meanwhile, what was
    sent in a longer time arrives within it. Links whose excess is within the measurement's resolution are left out.

    Args:
        samples: The lines of `traffic.jsonl`, in order.
        states: The lines of `links.jsonl`, in order.
    """
    history: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for state in states:
        moments, rates, delays = history.setdefault(state["link"], ([], [], []))
        moments.append(state["at_s"])
        rates.append(state.get("rate_bps", 0.0))  # the record of a removed link has neither
        delays.append(state.get("delay_s", delays[-1] if delays else 0.0))
    worst: dict[str, float] = {}
    for first, last in zip(samples, samples[WINDOW:], strict=False):
        began, seconds = first["at_s"], seconds_between(first, last)
        for link, size in _grown(first["bytes"], last["bytes"]):
            bits = 8.0 * size
            moments, rates, delays = history.get(link, ([], [], []))
            there = _in_force(moments, began - seconds, last["at_s"])
            there = _in_force(moments, began - seconds - max(delays[there], default=0.0), last["at_s"])
            highest = accumulate(delays[there], max)
            fell_s = max(
                (before_s - now_s for before_s, now_s in zip(highest, delays[there], strict=True)), default=0.0
            )
            allowed = max(rates[there], default=0.0) * (seconds + fell_s)
            if bits > allowed * (1 + LOOK_S / seconds) + SUPER_PACKET_BITS and allowed > 0:
                worst[link] = max(worst.get(link, 0.0), bits / allowed - 1)
    return worst


def seconds_between(first: Record, last: Record) -> float:
    """Return the seconds between two samples; samples of earlier versions have the wall clock only."""
    clock = "clock_s" if "clock_s" in first and "clock_s" in last else "at_s"
    return float(last[clock] - first[clock])


def _grown(first: Mapping[str, int], last: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the growth of each counter. A link that was made or replaced in between is left out."""
    for link, count in last.items():
        if link in first and count >= first[link]:
            yield link, count - first[link]


def _in_force(moments: Sequence[float], began_s: float, ended_s: float) -> slice:
    """Return the slice of the values in force in [began_s, ended_s], each from its moment on; moments are in order.

    The search is binary: a trace has 36,000 rates an hour, and an hour has as many windows as seconds.
    """
    after, end = bisect_right(moments, began_s), bisect_right(moments, ended_s)
    return slice(max(after - 1, 0), max(after, end))
