"""Ports for programs that are told where to listen."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

#: Of those below, and not the ones that services have.
FIRST = 10_000


def free_port() -> int:
    """Return a free port of this machine, which stays free until a program that is told it has started.

    That may take seconds; the kernel gives the port to no program that asks for any free one.
    """
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = FIRST + secrets.randbelow(given_from - FIRST)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
