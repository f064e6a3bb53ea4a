"""A probe: bytes that mean nothing, sent to find out what a path carries that no plan uses.

They travel on a connection of their own, so that whatever becomes of it concerns no round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from testbed.sync.errors import FrameError
from testbed.sync.transport.frame import PROBE_LANE, Frame, Kind
from testbed.sync.transport.send_queue import Backlog, Priority

#: A probe's frame. Small, for it ends its probe late by as much.
FRAME_BYTES: Final = 32 * 1024

#: Packets that wait on the path say that it is full. So much longer, and there are trains enough that say how much that
#: is; what follows would only be lost, and what members send there with it: 1.1 MB into a link of 4.3 Mbit/s over 240
#: ms lost 431 packets and held a round up for 6.7 s.
FULL_S: Final = 0.5

_FRAME = Frame(Kind.PROBE, 0, 0, 0, 0, 0, 0, 0, FRAME_BYTES, 0.0, 0)
_PAYLOAD = memoryview(bytearray(FRAME_BYTES))
_PRIORITY: Priority = (0, 0, 0, 0)


def send_probe(backlog: Backlog, most: int, seconds: float, queueing: Callable[[], bool]) -> None:
    """Keep `backlog` supplied for `seconds` after its first frame was sent, but not beyond `most` bytes, nor for longer
    than FULL_S after packets were found `queueing` on the path.

    One frame is sent and another waits, so that they arrive as one train.
    """
    deadline = float("inf")
    left = max(most // FRAME_BYTES, 1)

    def put() -> None:
        nonlocal left
        left -= 1
        backlog.put(_PRIORITY, _FRAME, _PAYLOAD, sent)

    def sent() -> None:
        nonlocal deadline
        now = time.monotonic()
        deadline = min(deadline, now + (FULL_S if queueing() else seconds))
        if left > 0 and now < deadline:
            put()

    put()
    if left > 0:
        put()


def check_probe(head: Frame, lane: int) -> None:
    """FrameError unless a probe's frame came in the lane for probes, and no longer than they are."""
    if lane != PROBE_LANE or head.length > FRAME_BYTES:
        raise FrameError(f"a probe's frame of {head.length} bytes in lane {lane}")
