"""How busy the host is, by the kernel's own count."""

from __future__ import annotations

from pathlib import Path


class CpuMeter:
    """The busy share of all processors between two readings."""

    def __init__(self) -> None:
        self._last = _cpu_times()

    def read(self) -> float:
        """In [0, 1], since the last reading (or the making)."""
        (busy0, total0), (busy1, total1) = self._last, _cpu_times()
        self._last = busy1, total1
        return (busy1 - busy0) / (total1 - total0) if total1 > total0 else 0.0


def _cpu_times() -> tuple[int, int]:
    """(busy, total) ticks of all processors since boot; waiting for a disk is not busy, being stolen from is."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)
