"""The share of time that the host's processors are busy, by the kernel's counters."""

from __future__ import annotations

from pathlib import Path


class CpuMeter:
    """Measures the busy share of all processors between two readings."""

    def __init__(self) -> None:
        self._last = _cpu_times()

    def read(self) -> float:
        """Return the busy share since the last reading, or since the meter was made, from 0 to 1."""
        (busy0, total0), (busy1, total1) = self._last, _cpu_times()
        self._last = busy1, total1
        return (busy1 - busy0) / (total1 - total0) if total1 > total0 else 0.0


def _cpu_times() -> tuple[int, int]:
    """Return (busy, total) ticks of all processors since boot. Waiting for a disk is idle; stolen time is busy."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)
