"""Once a second: what has arrived over every link, how long its queue was busy, and how busy the host was.

Bytes are those the kernel counted where the link ends, so they say what a link did, not what it was told to do. What of
them went around the link's shaping is told beside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from testbed.emulation.network.network import Network
from testbed.emulation.network.node import ContainerHost
from testbed.emulation.network.share import WHOLE
from testbed.run.conclusion.link_counters import CounterReading, bypassed_bytes
from testbed.telemetry.host import CpuMeter

PERIOD_S = 1.0

#: A kernel's queues say how much waits now, not for how long: they are looked at this often in a period.
LOOKS = 10


class Sampler:
    """Samples a network into `record` from a thread of its own, between `start` and `stop`."""

    def __init__(self, network: Network, record: Callable[[Mapping[str, Any]], None], tcp: bool = False) -> None:
        """With `tcp` what each worker's TCP has counted is told beside: of workers that are not ours, who tell nothing
        themselves."""
        self._network = network
        self._tcp = tcp
        self._record = record
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._cpu = CpuMeter()
        self._failure: Exception | None = None
        self._last: CounterReading | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and end."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def failure(self) -> Exception | None:
        """What ended the sampling before its time."""
        return self._failure

    def _run(self) -> None:
        try:
            due = time.monotonic()
            while not self._stopped.is_set():
                self._sample()
                for _ in range(LOOKS):
                    due += PERIOD_S / LOOKS
                    self._stopped.wait(max(0.0, due - time.monotonic()))
                    self._network.shaper.counters()
            self._sample()
        except Exception as error:
            self._failure = error

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
                "clock_s": time.monotonic(),  # how far samples are apart: the other clock may be set meanwhile
                "bytes": arrived,
                # Where it is split, a link's ends are looked at by different hosts, and not at one moment.
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
    found = {}
    for host in list(network.hosts):
        if isinstance(host, ContainerHost):
            with suppress(FileNotFoundError):  # its container has ended
                found[host.name] = host.tcp_figures()
    return found
