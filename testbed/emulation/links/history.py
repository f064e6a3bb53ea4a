"""The recent states of a network's links, for a client that polls and must not miss any."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from testbed.link import LinkState

#: Half a minute of traces of 100 ms on the 26 links of netstorm9; clients poll each second.
REMEMBERED = 8192


def link_record(at_s: float, link: str, state: LinkState) -> dict[str, Any]:
    """Return a line of `links.jsonl`: the state that a link has since `at_s`, in Unix seconds."""
    return {
        "at_s": at_s,
        "link": link,
        "rate_bps": state.rate_bps,
        "delay_s": state.delay_s,
        "jitter_s": state.jitter_s,
        "loss": state.loss,
        "up": state.up,
        "discipline": state.queue.discipline_name,
    }


def unix_seconds(clock_s: float) -> float:
    """Convert a moment of this machine's monotonic clock to Unix seconds, which other machines share."""
    return clock_s - time.monotonic() + time.time()


class History:
    """Remembers the states that a testbed's observer receives, and calls `tell` for each. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, str, LinkState]] = deque(maxlen=REMEMBERED)
        self._latest: dict[str, tuple[float, str, LinkState]] = {}
        self._count = 0
        self.tell: Callable[[], None] = lambda: None

    def note(self, at_s: float, link: str, state: LinkState) -> None:
        """Record that a link has this state since `at_s` on the monotonic clock."""
        with self._lock:
            self._latest[link] = (unix_seconds(at_s), link, state)
            self._recent.append(self._latest[link])
            self._count += 1
        self.tell()

    def since(self, count: int | None) -> tuple[list[dict[str, Any]], int]:
        """Return the states after the first `count` as records, and the count to ask with next.

        States that are no longer remembered are missing. With `count` None, the last state of each link is returned.
        """
        with self._lock:
            if count is None:
                found = list(self._latest.values())
            else:
                found = [self._recent[-place] for place in range(min(self._count - count, len(self._recent)), 0, -1)]
            return [link_record(*each) for each in found], self._count
