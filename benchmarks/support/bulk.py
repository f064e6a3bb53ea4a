"""One connection that always has bytes to send, under a member's options: a process in a worker's namespace.

    python -m benchmarks.support.bulk receive ADDRESS PORT
    python -m benchmarks.support.bulk send ADDRESS PORT CONGESTION [again]

Both run until they are killed. With `again`, the connection begins again as a member's connections do (`StartUps`).
"""

from __future__ import annotations

import socket
import sys
import threading

from testbed.sync.transport import sockets
from testbed.sync.transport.startup import StartUp, StartUps

PIECE = bytes(64 * 1024)
TIMEOUT_S = 60.0


def main(role: str, address: str, port: str, congestion: str = "", again: str = "") -> None:
    """Receive or send."""
    where = address, int(port)
    if role == "receive":
        with socket.create_server(where) as listener:
            connection, _ = listener.accept()
            with connection:
                while connection.recv(len(PIECE)):
                    pass
        return
    with sockets.connect(where, TIMEOUT_S, threading.Event(), congestion) as connection:
        start_up = StartUp()
        if again:
            StartUps("bulk", lambda: [(connection, start_up)]).start()
        while True:
            connection.sendall(PIECE)


if __name__ == "__main__":
    main(*sys.argv[1:])
