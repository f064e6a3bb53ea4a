"""Records a network that is up while programs run: each state of its links, the events, and the traffic of each second.

The process that keeps the network up answers over its API.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from testbed.api.client import RequestFailed, RequestRefused
from testbed.api.requests import RecordLaunch
from testbed.emulation.daemon.discovery import client
from testbed.launch import LaunchFailed
from testbed.link import link_ends
from testbed.telemetry.host import CpuMeter

PERIOD_S = 1.0

T = TypeVar("T")

#: Called with a file's name and a record for it.
Append = Callable[[str, Mapping[str, Any]], None]


class Recorder:
    """Records a network from a thread, between `start` and `stop`.

    Args:
        network: The network's name.
        append: Called with each record of `links.jsonl`, `events.jsonl` and `traffic.jsonl`.
    """

    def __init__(self, network: str, append: Append) -> None:
        self._network = client(network)
        self._append = append
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._cpu = CpuMeter()
        self._count: int | None = None
        self._told_s = 0.0
        self._failure: Exception | None = None

    def status(self) -> dict[str, Any]:
        """Return the network's status.

        Raises:
            LaunchFailed: The network does not answer, or its emulation has failed.
        """
        status = self._asked(self._network.status)
        if status["failure"]:
            raise LaunchFailed(f"the emulation broke: {status['failure']}")
        return status

    def tell(self, kind: str, target: str) -> None:
        """Add an event of the launch to those of the network, which its page shows."""
        with suppress(RequestFailed, RequestRefused):  # it is going down, or an earlier version keeps it up
            self._network.do(RecordLaunch(kind=kind, target=target))

    def start(self) -> None:
        """Record the present state, and start the thread. Earlier events of the network are not recorded."""
        self._told_s = time.time()
        self._record()
        self._thread.start()

    def stop(self) -> None:
        """Record a last time, and end the thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the recording early, if one did; it is LaunchFailed if the network has ended."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PERIOD_S):
                self._record()
            self._record()
        except Exception as error:
            self._failure = error

    def _record(self) -> None:
        status = self.status()
        history = self._asked(lambda: self._network.history(self._count))
        self._count = history["count"]
        for state in history["states"]:
            if state["link"] in status["links"]:
                self._append("links.jsonl", state)
        for event in self._asked(self._network.events):
            if event["at_s"] > self._told_s:
                self._told_s = event["at_s"]
                self._append("events.jsonl", event)
        sample = {"at_s": time.time(), "clock_s": time.monotonic(), "bytes": arrived(status), "cpu": self._cpu.read()}
        self._append("traffic.jsonl", sample)

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except RequestFailed as error:
            raise LaunchFailed(str(error)) from error


def arrived(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes that the kernel counted at the end of each link, of a network with this status."""
    from testbed.emulation.network.node import received_bytes  # needs Mininet

    received = {}
    for host in status["hosts"].values():
        if host["kind"] == "router":
            with suppress(FileNotFoundError):  # a swap has removed the site since
                received[host["site"]] = received_bytes(host["pid"])
    ends = ((link, *link_ends(link)) for link in status["links"])
    return {link: received[b][a] for link, a, b in ends if a in received.get(b, {})}
