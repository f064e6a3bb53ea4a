"""Datagrams from one host to another at a fixed pace, sent and counted by a thread of this process.

    due = pace x time - sent;  of what is due more than `burst` at once is left out, never sent late

So a pause of the sender makes a gap and no burst, which would overflow the link's queue and pass for a loss on the way.
Several datagrams that are due go in one call (UDP_SEGMENT) and leave as single frames where the host's interface has no
segmentation offload: in a guest kernel a call takes a fifth of a millisecond. The target has a socket, lest its kernel
answer each datagram with an error, and never reads from it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from testbed.emulation.links.probe import udp_socket
from testbed.emulation.network.namespace import inside

PORT = 7002
STEP_S = 0.001

#: From linux/udp.h; the socket module has no name for it. A call is limited in datagrams and in bytes.
UDP_SEGMENT = 103
MAX_SEGMENTS = 64
MAX_CALL_BYTES = 65507


@dataclass(frozen=True, slots=True)
class Pace:
    """The payload bytes of a datagram, datagrams per second, and the most that are sent at once."""

    payload: int
    per_s: float
    burst: int


@dataclass(slots=True)
class Sending:
    """A flow of datagrams; `sent` counts those that were sent."""

    pace: Pace
    sent: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self, out: socket.socket) -> None:
        """Send until told to end."""
        segments = min(MAX_SEGMENTS, MAX_CALL_BYTES // self.pace.payload)
        data = bytes(segments * self.pace.payload)
        began, gone = time.monotonic(), 0
        while not self._ended.wait(STEP_S):
            due = int((time.monotonic() - began) * self.pace.per_s) - gone
            gone += due
            due = min(due, self.pace.burst)
            while due > 0:
                count = min(due, segments)
                out.send(data[: count * self.pace.payload])
                self.sent += count
                due -= count

    def end(self) -> None:
        """Tell the sender to stop."""
        self._ended.set()


@contextmanager
def sending(source: Path, target: Path, address: str, pace: Pace) -> Iterator[Sending]:
    """Send from a namespace to another's address until the context is left."""
    with inside(target, udp_socket) as into, inside(source, udp_socket) as out:
        into.bind(("0.0.0.0", PORT))
        out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, pace.payload)
        out.connect((address, PORT))
        flow = Sending(pace)
        thread = threading.Thread(target=flow.run, args=(out,))
        thread.start()
        try:
            yield flow
        finally:
            flow.end()
            thread.join()
