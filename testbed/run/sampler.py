"""Samples a network once a second: the bytes that arrived over each link, its queue's busy time, the host's load.

Bytes are counted by the kernel at the link's end, so they show what a link carried, not what was configured. The
bytes that bypassed the link's shaper are given beside them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from testbed.emulation.network.share import WHOLE
from testbed.run.conclusion.link_counters import CounterReading, bypassed_bytes
from testbed.telemetry.host import CpuMeter

if TYPE_CHECKING:  # importing it needs Mininet, which `simulate` and `report` do without
    from testbed.emulation.network.network import Network

PERIOD_S = 1.0

#: The kernel reports a queue's length, not how long it was busy, so the length is read this often in a period.
LOOKS = 10


class Sampler:
    """Samples a network from a thread of its own, between `start` and `stop`.

    `record` is called with each sample, a line of `traffic.jsonl`. With `tcp`, a sample includes each worker's TCP
    counters, for workers that don't report them themselves.
    """

    def __init__(self, network: Network, record: Callable[[Mapping[str, Any]], None], tcp: bool = False) -> None:
        self._network = network
        self._tcp = tcp
        self._record = record
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._cpu = CpuMeter()
        #: The error that ended the sampling early, or None.
        self.failure: Exception | None = None
        self._last: CounterReading | None = None

    def start(self) -> None:
        """Start sampling in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and end the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            due = time.monotonic()
            while not self._stopped.is_set():
                self._sample()
                for _ in range(LOOKS):
                    # Samples missed in a pause of the host are not made up for: a burst would hide the pause's length.
                    due = max(due + PERIOD_S / LOOKS, time.monotonic())
                    self._stopped.wait(max(0.0, due - time.monotonic()))
                    self._network.shaper.counters()
            self._sample()
        except Exception as error:
            self.failure = error

    def _sample(self) -> None:
        before = self._network.shaper.counters()
        arrived = self._network.arrived_bytes()
        after = self._network.shaper.counters()
        look = CounterReading(
            {name: c.bytes for name, c in before.items()}, arrived, {name: c.bytes for name, c in after.items()}
        )
        wan = self._network.links_in_force.states().keys() & after.keys()
        self._record(
            {
                "at_s": time.time(),
                "clock_s": time.monotonic(),  # for the time between samples: the wall clock may be set in between
                "bytes": arrived,
                # The two ends of a link that is split over hosts are not read at one moment, so they can't be compared.
                "unshaped_bytes": bypassed_bytes(self._last, look)
                if self._last and self._network.share is WHOLE
                else {},
                "busy_s": {name: round(after[name].busy_s, 4) for name in wan},
                "steady_s": {name: round(after[name].steady_s, 4) for name in wan},
                "steady_bytes": {name: after[name].steady_bytes for name in wan},
                "cpu": round(self._cpu.read(), 4),
                **({"tcp": _tcp_figures(self._network)} if self._tcp else {}),
            }
        )
        self._last = look


def _tcp_figures(network: Network) -> dict[str, dict[str, int]]:
    from testbed.emulation.network.node import ContainerHost

    found = {}
    for host in list(network.hosts):
        if isinstance(host, ContainerHost):
            with suppress(FileNotFoundError):  # its container has ended
                found[host.name] = host.tcp_figures()
    return found
