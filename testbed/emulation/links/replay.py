"""The replay of traces: sends each trace's rows to the links ahead of time; the shaper puts them in force.

    trace --rows of the next AHEAD_S--> links --states--> the shaper's own process --in force, and how late--> links

So nothing that this process does makes a row late, as long as it sends rows at least once in AHEAD_S. When a thread of
this process put rows in force, with real-time scheduling, the 99th percentile was 0.6 ms late on an idle host, and 7 to
21 ms as soon as another program took a processor, because ordinary threads hold the interpreter's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain

from testbed.emulation.links.links import Links
from testbed.emulation.shaping.base import ShapingError
from testbed.spec.topology import Link
from testbed.trace.trace import Row, Trace

#: Rows are sent this long before their moment: 1,300 states for 26 links in ticks of 100 ms.
AHEAD_S = 5.0
#: At a start, rows are sent in steps: those of AHEAD_S take 0.1 s a link in ticks of a millisecond, and the first of
#: them would be late.
SOON_S = (0.05, 0.5)

#: The interval in which rows are sent and applied rows are recorded; observers are called with this delay.
PERIOD_S = 0.25


class Replay:
    """Replays traces from `start()` to `stop()`: sends their rows to `links`, the links of the network."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._wake = threading.Condition()
        self._feeds: dict[str, _RowFeed] = {}
        self._began: float | None = None
        self._held_at_s: float | None = None
        self._stopped = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)
        links.follow(self)

    def start(self, links: Iterable[Link], at_s: float | None = None) -> None:
        """Start the replay: time 0 of all traces is now, or `at_s`, a future moment of the monotonic clock."""
        self._began = time.monotonic() if at_s is None else at_s
        self.follow(links)
        self._thread.start()

    def follow(self, links: Iterable[Link]) -> None:
        """Replay these links' traces instead, from the time that the replay has reached."""
        with self._wake:
            self._feeds = {link.name: _RowFeed(link.trace, self.elapsed_s) for link in links if link.trace is not None}
            for feed in self._feeds.values():  # to make those of long traces took a while
                feed.catch_up(self.elapsed_s)
            self._hand_over(replace_queued=True)

    def pause(self) -> None:
        """Pause all traces: the states in force stay, and the traces' time stands still until `resume`."""
        with self._wake:
            if self._held_at_s is None:
                self._held_at_s = self.elapsed_s
                self._links.replay({}, replace_queued=True)

    def resume(self, links: Iterable[Link]) -> None:
        """Continue these links' traces from where they were paused."""
        with self._wake:
            if self._held_at_s is not None:
                self._began, self._held_at_s = time.monotonic() - self._held_at_s, None
                self.follow(links)

    @property
    def paused(self) -> bool:
        """True if the replay is paused."""
        return self._held_at_s is not None

    @property
    def began_s(self) -> float | None:
        """Time 0 of all traces on the monotonic clock; None before the start."""
        return self._began

    @property
    def elapsed_s(self) -> float:
        """Seconds since the replay began, without pauses; 0 before the start."""
        if self._held_at_s is not None:
            return self._held_at_s
        return 0.0 if self._began is None else max(time.monotonic() - self._began, 0.0)

    @property
    def failure(self) -> Exception | None:
        """The error that ended the replay early, or None."""
        began = self._thread.ident is not None
        if self._failure is None and began and not self._stopped and not self._thread.is_alive():
            return RuntimeError("the trace replay thread ended without an error")
        return self._failure

    def stop(self) -> None:
        """Stop the replay; the states in force stay."""
        with self._wake:
            if self._stopped:
                return
            self._stopped = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(ShapingError):  # a dead shaper puts no further states in force
            self._links.replay({}, replace_queued=True)

    def _run(self) -> None:
        try:
            with self._wake:
                while not self._wake.wait_for(lambda: self._stopped, PERIOD_S):
                    self._hand_over()
        except Exception as error:
            self._failure = error

    def _hand_over(self, replace_queued: bool = False) -> None:
        """Send the links the rows of the next AHEAD_S that they do not have yet, those that are due soon first."""
        if self.paused:
            return
        began = self._began or 0.0
        for ahead_s in (*SOON_S, AHEAD_S):
            until_s = self.elapsed_s + ahead_s
            rows = {
                name: [(began + at_s, row) for at_s, row in its.until(until_s)] for name, its in self._feeds.items()
            }
            if (sent := {name: its for name, its in rows.items() if its}) or replace_queued or ahead_s == AHEAD_S:
                self._links.replay(sent, replace_queued)
            replace_queued = False


class _RowFeed:
    """The rows of a trace from a moment on, each yielded once."""

    def __init__(self, trace: Trace, elapsed_s: float) -> None:
        self._rows: Iterator[tuple[float, Row | None]] = changes_from(trace, elapsed_s)
        self._next = next(self._rows, None)

    def until(self, until_s: float) -> Iterator[tuple[float, Row | None]]:
        """Yield the rows up to a moment that were not yielded before."""
        while self._next is not None and self._next[0] <= until_s:
            yield self._next
            self._next = next(self._rows, None)

    def catch_up(self, elapsed_s: float) -> None:
        """Leave out the rows that others have followed by this moment."""
        if passed := list(self.until(elapsed_s)):
            following = () if self._next is None else (self._next,)
            self._rows, self._next = chain(following, self._rows), (elapsed_s, passed[-1][1])


def changes_from(trace: Trace, elapsed_s: float) -> Iterator[tuple[float, Row | None]]:
    """Yield the row in force at `elapsed_s`, as of that moment, then each later change.

    Completed laps of a loop are skipped: a loop of 100 ms has 36,000 of them in an hour.
    """
    over = elapsed_s // trace.duration_s * trace.duration_s if trace.end == "loop" else 0.0
    changes = ((over + moment, row) for moment, row in trace.changes())
    in_force, following = next(changes), next(changes, None)
    while following is not None and following[0] <= elapsed_s:
        in_force, following = following, next(changes, None)
    yield elapsed_s, in_force[1]
    if following is not None:
        yield following
        yield from changes
