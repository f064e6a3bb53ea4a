"""The states that a network's links had lately, for who asks from time to time and is to miss none."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from testbed.link import LinkState

#: Half a minute of traces of 100 ms on the 26 links of netstorm9; who asks does it each second.
REMEMBERED = 8192


def link_record(at_s: float, link: str, state: LinkState) -> dict[str, Any]:
    """A line of `links.jsonl`: the state that a link has since `at_s`, in Unix seconds."""
    return {
        "at_s": at_s,
        "link": link,
        "rate_bps": state.rate_bps,
        "delay_s": state.delay_s,
        "jitter_s": state.jitter_s,
        "loss": state.loss,
        "up": state.up,
    }


def unix_seconds(clock_s: float) -> float:
    """A moment on the monotonic clock, which files of several processes do not share, in Unix seconds."""
    return clock_s - time.monotonic() + time.time()


class History:
    """Remembers what a testbed's observer is told, and has `tell` called then. Any thread may tell and ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, str, LinkState]] = deque(maxlen=REMEMBERED)
        self._latest: dict[str, tuple[float, str, LinkState]] = {}
        self._count = 0
        self.tell: Callable[[], None] = lambda: None

    def note(self, at_s: float, link: str, state: LinkState) -> None:
        """A link has this state since `at_s`, on the monotonic clock."""
        with self._lock:
            self._latest[link] = (unix_seconds(at_s), link, state)
            self._recent.append(self._latest[link])
            self._count += 1
        self.tell()

    def since(self, count: int | None) -> tuple[list[dict[str, Any]], int]:
        """The states after the first `count`, as far as they are remembered, or each link's last where it is None, as
        records; and the count to ask with next."""
        with self._lock:
            if count is None:
                found = list(self._latest.values())
            else:
                found = [self._recent[-place] for place in range(min(self._count - count, len(self._recent)), 0, -1)]
            return [link_record(*each) for each in found], self._count
