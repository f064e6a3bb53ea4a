"""The memory that a flood into a slow link takes: `sudo .venv/bin/python -m tests.emulation.shaping.overload`.

UDP of full frames at 1 Gbit/s goes into a link of 64 kbit/s for ten seconds, or as options say. The kernel's slabs and
the core's memory may grow by 64 MiB at the most; the exit status is 1 if they grow by more.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from benchmarks.support import flood
from testbed.emulation.network.namespace import inside
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
    """The measurements of a flood.

    The most that memory grew, the rate offered, the core's share of a processor, and the packets that the kernel held
    for the link right after the flood.
    """

    growth_bytes: int = 0
    offered_bps: float = 0.0
    core: float = 0.0
    waiting: int = 0
    counters: LinkCounters = field(default_factory=LinkCounters)


def overload(path: Path, state: LinkState = SLOW, *, seconds: float) -> Overload:
    """Flood the path's link in this state."""
    seen = Overload()
    with UserspaceShaper() as shaper, sink(path):
        shaper.attach({path.there: state})
        before, used, began = _memory_bytes(shaper.pid), _cpu_s(shaper.pid), time.monotonic()
        with flood.start([flood.Stream(path.namespace("source"), TARGET, FLOOD_BPS)], seconds) as sending:
            while sending.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    sending.wait(LOOK_EVERY_S)
                seen.growth_bytes = max(seen.growth_bytes, _memory_bytes(shaper.pid) - before)
        seen.core = (_cpu_s(shaper.pid) - used) / (time.monotonic() - began)
        shaper.counters()  # when the next request is answered, what came before this one has its verdict
        seen.counters = shaper.counters()[path.there.link]
        seen.waiting = _waiting(path)
    frames = seen.counters.packets + seen.counters.dropped_queue
    seen.offered_bps = frames * MTU_FRAME_BYTES * 8 / seconds
    return seen


def sink(path: Path) -> socket.socket:
    """Return the socket that the datagrams go to. It keeps a few; without it the sender would get ICMP errors."""
    made = inside(path.namespace("target"), lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    made.bind(("0.0.0.0", flood.PORT))
    return made


def _memory_bytes(core: int) -> int:
    """Return the memory of the kernel's slabs and of the core."""
    slab = re.search(r"^Slab:\s+(\d+) kB", FilePath("/proc/meminfo").read_text(), re.MULTILINE)
    rss = re.search(r"^VmRSS:\s+(\d+) kB", FilePath(f"/proc/{core}/status").read_text(), re.MULTILINE)
    assert slab and rss
    return (int(slab[1]) + int(rss[1])) << 10


def _cpu_s(pid: int) -> float:
    fields = FilePath(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _waiting(path: Path) -> int:
    """By the kernel's own count, of the one queue that there is."""
    queues = FilePath("/proc/thread-self/net/netfilter/nfnetlink_queue")
    _, _, total, *_ = inside(path.namespace("left"), queues.read_text).split()
    return int(total)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=SLOW.rate_bps, help="of the link, in bit/s")
    parser.add_argument("--delay", type=float, default=SLOW.delay_s, help="of the link, in seconds")
    asked = parser.parse_args()
    path = Path()
    try:
        path.build()
        seen = overload(path, LinkState(asked.rate, asked.delay), seconds=asked.seconds)
    finally:
        path.remove()
    print(
        f"{seen.offered_bps / 1e6:.0f} Mbit/s offered: memory grew by {seen.growth_bytes / 2**20:.1f} MiB at the most, "
        f"{seen.waiting} packets wait, the core took {seen.core:.0%} of a processor; {seen.counters}"
    )
    sys.exit(seen.growth_bytes > MOST_GROWTH_BYTES)
