"""A probe: bytes that mean nothing, sent to find out what a path carries that no plan uses.

They travel on a connection of their own, so that whatever becomes of it concerns no round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from testbed.sync.transport.frame import Frame
from testbed.sync.transport.send_queue import Priority, SendQueue

#: A probe's frame. Small, for it ends its probe late by as much.
FRAME_BYTES: Final = 32 * 1024

#: Packets that wait on the path say that it is full. So much longer, and there are trains enough that say how much that
#: is; what follows would only be lost, and what members send there with it: 1.1 MB into a link of 4.3 Mbit/s over 240
#: ms lost 431 packets and held a round up for 6.7 s.
FULL_S: Final = 0.5

_FRAME = Frame(b"", FRAME_BYTES)
_PAYLOAD = memoryview(bytearray(FRAME_BYTES))
_PRIORITY: Priority = (0,)


def send_probe(queue: SendQueue, most: int, seconds: float, queueing: Callable[[], bool]) -> None:
    """Keep `queue` supplied for `seconds` after its first frame was sent, but not beyond `most` bytes, nor for longer
    than FULL_S after packets were found `queueing` on the path.

    One frame is sent and another waits, so that they arrive as one train.
    """
    deadline = float("inf")
    left = max(most // FRAME_BYTES, 1)

    def put() -> None:
        nonlocal left
        left -= 1
        queue.put(_PRIORITY, _FRAME, _PAYLOAD, sent)

    def sent() -> None:
        nonlocal deadline
        now = time.monotonic()
        deadline = min(deadline, now + (FULL_S if queueing() else seconds))
        if left > 0 and now < deadline:
            put()

    put()
    if left > 0:
        put()
