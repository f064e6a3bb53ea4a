"""Ports for programs that are told where to listen."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

#: Of those below, and not the ones that services have.
FIRST = 10_000


def free_port() -> int:
    """One of this machine that is free, and stays so until the program that is told it has started, which may take
    seconds: the kernel gives it to nobody who asks for any."""
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = FIRST + secrets.randbelow(given_from - FIRST)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
