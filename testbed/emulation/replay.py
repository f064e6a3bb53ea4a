"""The replay clock: puts each trace's rows in force at their moments.

It sleeps to absolute deadlines, so an error in one tick is not carried into the next, and records how late each tick
was: the time from the row's moment to the return of the call that put it in force.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count

from testbed.spec.topology import Link
from testbed.trace.trace import Row, Trace

Apply = Callable[[Mapping[str, Row | None]], None]

#: Rows due within this many seconds of each other go in one batch: a tenth of the lateness that is tolerated.
BATCH_S = 0.0005

#: The real-time round-robin class, so that a busy host's workers do not delay a tick; the lowest priority of it.
REALTIME_PRIORITY = 1


class ReplayClock:
    """Replays the traces of links from `start()` on, in a thread of its own, until `stop()`."""

    def __init__(self, apply: Apply, remember: int | None = None) -> None:
        """`remember` is how many ticks of a link `lateness` tells of, the last ones; all of them by default."""
        self._apply = apply
        self._remember = remember
        self._wake = threading.Condition()
        self._order = count()
        self._due: list[tuple[float, int, str, Row | None, Iterator[tuple[float, Row | None]]]] = []
        self._began: float | None = None
        self._stopped = False
        self._failure: Exception | None = None
        self._late: dict[str, deque[float]] = {}
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self, links: Iterable[Link]) -> None:
        """Begin: now is time 0 of all traces."""
        self._began = time.monotonic()
        self.follow(links)
        self._thread.start()

    def follow(self, links: Iterable[Link]) -> None:
        """Replay these links' traces instead, from the moment the replay has reached."""
        with self._wake:
            elapsed = self.elapsed_s
            self._due.clear()
            for link in links:
                if link.trace is not None:
                    changes = changes_from(link.trace, elapsed)
                    self._push(link.name, *next(changes), changes)
            self._wake.notify()

    def _push(self, name: str, moment: float, row: Row | None, rest: Iterator[tuple[float, Row | None]]) -> None:
        heapq.heappush(self._due, (moment, next(self._order), name, row, rest))

    @property
    def began_s(self) -> float | None:
        """Time 0 of all traces, on the monotonic clock; None before."""
        return self._began

    @property
    def elapsed_s(self) -> float:
        """Seconds since the replay began; 0 before."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    @property
    def failure(self) -> Exception | None:
        """What ended the replay before its time."""
        began = self._thread.ident is not None
        if self._failure is None and began and not self._stopped and not self._thread.is_alive():
            return RuntimeError("the replay's thread has ended without a word")
        return self._failure

    def lateness(self) -> dict[str, list[float]]:
        """Seconds late, for each tick of each link that is remembered."""
        with self._wake:
            return {name: list(late) for name, late in self._late.items()}

    def stop(self) -> None:
        """End the replay; the states in force stay."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            _ask_for_realtime()
            while (batch := self._next_batch()) is not None:
                self._apply({name: row for _, name, row in batch})  # of several rows of a link, the last
                done = self.elapsed_s
                with self._wake:
                    for moment, name, _ in batch:
                        late = self._late.setdefault(name, deque(maxlen=self._remember))
                        late.append(max(0.0, done - moment))
        except Exception as error:
            self._failure = error

    def _next_batch(self) -> list[tuple[float, str, Row | None]] | None:
        """Sleep until rows are due; None when stopped."""
        with self._wake:
            while not self._stopped:
                now = self.elapsed_s
                if not self._due:
                    self._wake.wait()
                elif self._due[0][0] > now:
                    self._wake.wait(self._due[0][0] - now)
                else:
                    return self._take_due(now)
            return None

    def _take_due(self, now: float) -> list[tuple[float, str, Row | None]]:
        batch: list[tuple[float, str, Row | None]] = []
        while self._due and self._due[0][0] <= now + BATCH_S:
            moment, _, name, row, rest = heapq.heappop(self._due)
            batch.append((moment, name, row))
            following = next(rest, None)
            if following is not None:
                self._push(name, *following, rest)
        return batch


def changes_from(trace: Trace, elapsed_s: float) -> Iterator[tuple[float, Row | None]]:
    """The row in force at `elapsed_s`, as of that moment, then each change after it.

    The laps of a loop that are over are left out: of one of 100 ms there are 36,000 in an hour.
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


def _ask_for_realtime() -> None:
    """Real-time scheduling for this thread where the host grants it, else a higher priority, else neither.

    Lateness is recorded either way.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY))
    except PermissionError:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -15)
