"""Whether links let more pass than they may, by the kernel's count where they end. Pure.

A shaper that vouches for itself does not see what goes around it: a rule that someone deleted, a queue that someone
replaced. The kernel's count does: it is held against the rate (`excess`), and against what the shaper says it let
through (`around`), which tells bursts too that are no more in three seconds than the rate would have carried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]

#: Samples a window spans: three seconds, over which a sample that a busy host takes late counts little …
WINDOW = 3
#: … as does this, by which two looks may be further apart than they say …
LOOK_S = 0.1
#: … and this, which arrives at once.
SUPER_PACKET_BITS = 8 * 65_536


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Link → bytes since it was made, at one moment: what the kernel counted where it ends, and what its shaper had let
    through just `before` and just `after` that was read."""

    before: Mapping[str, int]
    arrived: Mapping[str, int]
    after: Mapping[str, int]


def bypassed_bytes(first: CounterReading, last: CounterReading) -> dict[str, int]:
    """Link → bytes that arrived between two looks and that its shaper cannot have let through; only what is more than a
    super-packet. A shaper counts each frame's headers, the kernel those of the super-packet alone, so of what is shaped
    never more arrives than was let through from before the first look to after the last."""
    found = {}
    for link, arrived in _grown(first.arrived, last.arrived):
        if link in first.before and last.after.get(link, -1) >= first.before[link]:
            beside = arrived - (last.after[link] - first.before[link])
            if 8 * beside > SUPER_PACKET_BITS:
                found[link] = beside
    return found


def rate_excess(samples: Sequence[Record], states: Sequence[Record]) -> dict[str, float]:
    """Link → by how much it passed its rate in its worst window, relative; only where that is more than can be told
    from nothing. `samples` and `states` are the records of `traffic.jsonl` and `links.jsonl`.

    A window is held against the highest rate of its time and of as long before, when what now arrives may have left.
    """
    history: dict[str, list[tuple[float, float]]] = {}
    for state in states:
        history.setdefault(state["link"], []).append((state["at_s"], state["rate_bps"]))
    worst: dict[str, float] = {}
    for first, last in zip(samples, samples[WINDOW:], strict=False):
        began, seconds = first["at_s"], seconds_between(first, last)
        for link, size in _grown(first["bytes"], last["bytes"]):
            bits = 8.0 * size
            allowed = _peak_bps(history.get(link, []), began - seconds, last["at_s"]) * seconds
            if bits > allowed * (1 + LOOK_S / seconds) + SUPER_PACKET_BITS and allowed > 0:
                worst[link] = max(worst.get(link, 0.0), bits / allowed - 1)
    return worst


def seconds_between(first: Record, last: Record) -> float:
    """Seconds between two samples. Those of earlier versions have the time of day alone."""
    clock = "clock_s" if "clock_s" in first and "clock_s" in last else "at_s"
    return float(last[clock] - first[clock])


def _grown(first: Mapping[str, int], last: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """By how much each link's count grew, of those there all the time; the count of one made anew begins again."""
    for link, count in last.items():
        if link in first and count >= first[link]:
            yield link, count - first[link]


def _peak_bps(history: Sequence[tuple[float, float]], began_s: float, ended_s: float) -> float:
    """The highest rate in force in [began_s, ended_s]; `history` is in time order."""
    before = [rate for at_s, rate in history if at_s <= began_s][-1:]
    return max(before + [rate for at_s, rate in history if began_s < at_s <= ended_s], default=0.0)
