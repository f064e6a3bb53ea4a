"""A probe: bytes that mean nothing, sent to find out what a path carries that no plan uses.

They travel on a connection of their own, so that whatever becomes of it concerns no round.
"""

from __future__ import annotations

import time
from typing import Final

from testbed.sync.backlog import Backlog, Priority
from testbed.sync.errors import FrameError
from testbed.sync.frame import PROBE_LANE, Frame, Kind

#: A probe's frame. Small, for it ends its probe late by as much.
FRAME_BYTES: Final = 32 * 1024

_FRAME = Frame(Kind.PROBE, 0, 0, 0, 0, 0, 0, 0, FRAME_BYTES, 0.0, 0)
_PAYLOAD = memoryview(bytearray(FRAME_BYTES))
_PRIORITY: Priority = (0, 0, 0, 0)


def send_probe(backlog: Backlog, most: int, seconds: float) -> None:
    """Keep `backlog` supplied for `seconds` after its first frame was sent, but not beyond `most` bytes.

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
        deadline = min(deadline, now + seconds)
        if left > 0 and now < deadline:
            put()

    put()
    if left > 0:
        put()


def check_probe(head: Frame, lane: int) -> None:
    """FrameError unless a probe's frame came in the lane for probes, and no longer than they are."""
    if lane != PROBE_LANE or head.length > FRAME_BYTES:
        raise FrameError(f"a probe's frame of {head.length} bytes in lane {lane}")
