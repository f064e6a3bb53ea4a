"""Loads beside a measurement: UDP of full frames from many hosts at an even pace, and a busy processor.

The sender is a process of its own that works to absolute deadlines: it sends late what it could not send in time, so a
pause makes a burst and no gap.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation.network.namespace import inside
from testbed.link import MTU_FRAME_BYTES

#: Full frames: 14 of Ethernet, 20 of IP and 8 of UDP.
PAYLOAD = bytes(MTU_FRAME_BYTES - 14 - 20 - 8)
PORT = 7000
STEP_S = 0.001
BUFFER_BYTES = 1 << 26
#: setsockopt(33) past the system's limit, for root; the socket module has no name for it.
SO_RCVBUFFORCE = 33


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream from a namespace to an address, at a rate of frames in bit/s."""

    netns: Path
    address: str
    rate_bps: float


def start(streams: Sequence[Stream], seconds: float) -> subprocess.Popen[bytes]:
    """Start the process that sends; it ends by itself."""
    asked = [[str(stream.netns), stream.address, stream.rate_bps] for stream in streams]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.support.flood", json.dumps(asked), str(seconds)])


def receiver(netns: Path) -> socket.socket:
    """Return a socket that receives a host's datagrams and buffers many of them."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        made.bind(("0.0.0.0", PORT))
        return made

    return inside(netns, make)


@contextmanager
def burner() -> Iterator[None]:
    """Run a process that keeps one processor busy, until the context is left."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def _send(streams: Sequence[Stream], seconds: float) -> None:
    sockets = []
    for stream in streams:
        made = inside(stream.netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.connect((stream.address, PORT))
        sockets.append(made)
    sent = [0] * len(streams)
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        for number, stream in enumerate(streams):
            for _ in range(int(elapsed * stream.rate_bps / 8 / MTU_FRAME_BYTES) - sent[number]):
                sockets[number].send(PAYLOAD)
                sent[number] += 1
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began - elapsed)))


if __name__ == "__main__":
    _send([Stream(Path(netns), address, rate) for netns, address, rate in json.loads(sys.argv[1])], float(sys.argv[2]))
