"""BBR's start-up, begun again on a connection whose path has risen.

BBR finds a risen rate slowly. After heavy losses it takes the path for policed, and keeps to the rate that came through
for 48 round trips. Then it grows by a sixth in a round trip. At start-up it doubles its rate in each. A path of 10
Mbit/s and 150 ms fell to a twentieth for 15 s. In the 15 s after the rise, BBR alone carried 47 % of its earlier rate,
and a connection that began again 91 % (`benchmarks.transport`).

Start-up begins again if a connection sends at most half as fast as it once did, although its bytes neither queue on the
path nor get lost. If the path is still slow, start-up fills its queue for some round trips. So the next start-up comes
after twice the time, or as soon as the connection's rate has grown.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from testbed.sync.errors import SyncError
from testbed.sync.executor import start
from testbed.sync.transport import tcpinfo
from testbed.sync.transport.handshake import CLOSE_S
from testbed.sync.transport.tcpinfo import PROBING, BbrInfo, TcpInfo

#: Seconds between two looks at a connection.
LOOK_S: Final = 0.25
#: A connection is slow at this part of its highest rate.
SLOW: Final = 0.5
#: A connection has grown at this multiple of its lowest rate while it was slow.
GROWN: Final = 1.4
#: The path loses much if it loses this part of what it delivers, as in BBR.
LOSSY: Final = 0.2
#: The payload of a full packet.
PACKET_BYTES: Final = 1448
#: Seconds between two starts without growth; each is twice the one before.
WAIT_S: Final = 1.0

log = logging.getLogger(__name__)


class StartUp:
    """Decides when BBR's start-up begins again on one connection, which stays open."""

    def __init__(self) -> None:
        self._highest = 0
        self._lowest = 0
        self._before = tcpinfo.NOTHING
        self._due_s = 0.0
        self._wait_s = WAIT_S

    def observe(self, info: TcpInfo, view: BbrInfo, now_s: float) -> bool:
        """Record the connection's figures at `now_s` (monotonic). Returns whether start-up should begin again now."""
        bytes_s = view.bytes_s
        grown, self._before = info.since(self._before), info
        self._highest = max(self._highest, bytes_s)
        if view.gain > PROBING:  # start-up is under way
            self._lowest = 0
            return False
        if bytes_s > SLOW * self._highest:
            self._lowest, self._wait_s = 0, WAIT_S
            return False
        self._lowest = min(self._lowest or bytes_s, bytes_s)
        lost = grown.retransmits * PACKET_BYTES
        if not info.unsent_bytes or info.queues or not grown.bytes_acked or lost > LOSSY * grown.bytes_acked:
            return False
        rises = bytes_s >= GROWN * self._lowest
        if not rises and now_s < self._due_s:
            return False
        self._wait_s *= 1 if rises else 2
        self._due_s = now_s + self._wait_s
        self._lowest = 0
        return True


class StartUps:
    """Checks a member's connections each LOOK_S, on a thread, and begins start-up again where it is due."""

    def __init__(self, member: str, connections: Callable[[], Iterable[tuple[socket.socket, StartUp]] | None]) -> None:
        self._connections = connections
        self._closed = threading.Event()
        self._name = f"{member}: start-up"
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs already. If it can't be started, start-up never begins again."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                start(thread)
            except SyncError as error:
                log.warning("BBR's start-up can't begin again on slow connections: %s", error)
            self._thread = thread

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            for connection, start_up in self._connections() or ():
                with suppress(OSError):  # closed, or the kernel does not allow it
                    look(connection, start_up, time.monotonic())


def look(connection: socket.socket, start_up: StartUp, now_s: float) -> None:
    """Begin start-up again on a connection under BBR, if that is due.

    Raises:
        OSError: The connection is closed, or the kernel does not allow its congestion control to be set.
    """
    view = tcpinfo.bbr(connection)
    if view is not None and start_up.observe(tcpinfo.read(connection), view, now_s):
        tcpinfo.begin_again(connection)
