"""One packet that stands for many frames, as hosts with segmentation offload send them."""

from __future__ import annotations

import socket
from contextlib import suppress

from testbed.emulation.links.probe import udp_socket
from testbed.emulation.network.namespace import inside
from tests.emulation.shaping.path import PAYLOAD, TARGET, Path

#: From linux/udp.h; the socket module has no name for it. Payload of each datagram that the packet is cut into.
UDP_SEGMENT = 103
PORT = 7001


def super_packet(path: Path, frames: int) -> int:
    """Send `frames` full frames from the source as one packet, and return how many came to the target."""
    with inside(path.namespace("target"), udp_socket) as into, inside(path.namespace("source"), udp_socket) as out:
        into.bind(("0.0.0.0", PORT))
        into.settimeout(10.0)
        out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PAYLOAD)
        out.sendto(bytes(frames * PAYLOAD), (TARGET, PORT))
        came = 0
        with suppress(TimeoutError):
            while came < frames:
                came += len(into.recv(2 * PAYLOAD)) == PAYLOAD
        return came
