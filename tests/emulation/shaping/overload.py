"""What a flood into a slow link leaves in memory: `sudo .venv/bin/python -m tests.emulation.shaping.overload`.

UDP of full frames at 1 Gbit/s goes into a link of 64 kbit/s for ten seconds, or as options say. The kernel's slabs and
the core's memory may grow by 64 MiB at the most; the exit status is 1 if they grow by more.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path as FilePath

from benchmarks.support import flood
from testbed.emulation.namespace import inside
from testbed.emulation.shaping.base import LinkCounters
from testbed.emulation.shaping.userspace import UserspaceShaper
from testbed.link import MTU_FRAME_BYTES, LinkState
from tests.emulation.shaping.path import TARGET, Path

FLOOD_BPS = 1e9
SLOW = LinkState(rate_bps=64e3, delay_s=0.01)
#: Of the kernel's slabs and the core together.
MOST_GROWTH_BYTES = 64 << 20
LOOK_EVERY_S = 0.05


@dataclass(slots=True)
class Overload:
    """The most that was seen during a flood: how much memory grew, and packets that the kernel held for the link."""

    growth_bytes: int
    held_packets: int
    offered_bps: float
    core_share: float
    counters: LinkCounters


def overload(path: Path, state: LinkState = SLOW, *, rate_bps: float = FLOOD_BPS, seconds: float) -> Overload:
    """Flood the path's link in this state."""
    with UserspaceShaper() as shaper:
        shaper.attach({path.there: state})
        before, used, began = _memory_bytes(shaper.pid), _cpu_s(shaper.pid), time.monotonic()
        seen = Overload(0, 0, 0.0, 0.0, LinkCounters())
        with flood.start([flood.Stream(path.namespace("source"), TARGET, rate_bps)], seconds) as sending:
            while sending.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    sending.wait(LOOK_EVERY_S)
                seen.growth_bytes = max(seen.growth_bytes, _memory_bytes(shaper.pid) - before)
                seen.held_packets = max(seen.held_packets, _held_packets(path))
        seen.core_share = (_cpu_s(shaper.pid) - used) / (time.monotonic() - began)
        seen.counters = shaper.counters()[path.there.link]
        frames = seen.counters.packets + seen.counters.dropped_queue
        seen.offered_bps = frames * MTU_FRAME_BYTES * 8 / seconds
        return seen


def _memory_bytes(core: int) -> int:
    """What the kernel's slabs and the core take."""
    slab = re.search(r"^Slab:\s+(\d+) kB", FilePath("/proc/meminfo").read_text(), re.MULTILINE)
    rss = re.search(r"^VmRSS:\s+(\d+) kB", FilePath(f"/proc/{core}/status").read_text(), re.MULTILINE)
    assert slab and rss
    return (int(slab[1]) + int(rss[1])) << 10


def _cpu_s(pid: int) -> float:
    fields = FilePath(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _held_packets(path: Path) -> int:
    """By the kernel's own count, of the one queue that there is."""
    queues = FilePath("/proc/thread-self/net/netfilter/nfnetlink_queue")
    _, _, total, *_ = inside(path.namespace("left"), queues.read_text).split()
    return int(total)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--link", type=float, default=SLOW.rate_bps)
    parser.add_argument("--delay", type=float, default=SLOW.delay_s)
    parser.add_argument("--flood", type=float, default=FLOOD_BPS)
    asked = parser.parse_args()
    path = Path()
    try:
        path.build()
        seen = overload(path, LinkState(asked.link, asked.delay), rate_bps=asked.flood, seconds=asked.seconds)
    finally:
        path.remove()
    print(
        f"{seen.offered_bps / 1e6:.0f} Mbit/s offered; memory grew by {seen.growth_bytes / 2**20:.1f} MiB at the most, the "
        f"kernel held {seen.held_packets} packets; core {seen.core_share:.0%}; {seen.counters}"
    )
    sys.exit(seen.growth_bytes > MOST_GROWTH_BYTES)
