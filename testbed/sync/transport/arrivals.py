"""How fast frames came in while their sender had more to send: what the path from it carries.

    sender      [frame][frame][frame]       [frame]      the second and third follow: they waited for the one before
    on the way  [ frame  ][ frame  ][ frame  ]           the slowest link spreads them out
    receiver     |------- a train ----------|            its bytes, but the first packet's, over the time that they took

Packets that leave faster than a link can pass them on arrive at that link's rate, whatever the round trip is, however
few they are, and whatever acknowledgements do on the way back. The kernel's time of arrival counts, so that it does not
matter when this process gets to run; only differences do, so no clock is shared.

What is missing is not passed on until it comes again, and then with all that came after it, faster than any link:
trains in which packets came out of order are left out, and those shortly after them. Where that goes on, as over a link
that fell and whose queue runs over ever since, what came in over a second says it: packets came all the while.

Two things look alike and are told apart: a sender without more to send begins another train; one whose TCP holds it
back says what that lets go (`allowed_bytes_s`, `burst_bytes_s`), and whoever reads the train knows that the path
carries at least as much.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from testbed.protocol import Train
from testbed.sync.transport.frame import Frame

#: What is shorter than a dozen packets says too little.
LEAST_BYTES = 16 * 1024

#: So many show how fast a train comes, and whether there was a pause in it: one window of ten packets and the first of
#: the next, a round trip later, were 1 Mbit/s over a link of 26.
PACED_BYTES = 8 * 1024

#: A train that says enough ends when it has so many bytes or lasted so long, so that a change shows within a round.
MOST_BYTES, MOST_S = 256 * 1024, 0.25

#: A pause so many times as long as the train's pace makes of it, and this much, is TCP's: a window that is used up, or
#: a loss that is mended.
PAUSE, PAUSE_S = 4.0, 0.005

#: So many packets out of order are a loss, and for so long after it the path has holes: a round trip, mostly.
OUT_OF_ORDER, MENDING_S = 2, 0.3

#: What comes with holes in it counts over so long, and if at least this part of it, in packets of SEGMENT_BYTES, came
#: out of order: it was not silence that they were waited for in. Over a link that fell from 23 to 3.2 Mbit/s no whole
#: train came for 4.7 s, two rounds long.
HOLES_S, HOLES, SEGMENT_BYTES = 1.0, 0.5, 1448

#: A sender that had no more to send is not heard of again before the next round.
IDLE_S = 0.1

#: Trains kept for each peer until somebody takes them. Of more the newest say enough.
KEPT = 256


class Arrivals:
    """The trains that came in over all connections and by probes, by peer. Any thread may call."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._trains: dict[str, list[Train]] = {}
        self._timings: list[Timing] = []

    @contextmanager
    def timing(self, peer: str, out_of_order: Callable[[], int]) -> Iterator[Timing]:
        """What times a connection from a peer; see Timing."""
        timing = Timing(peer, self, out_of_order)
        with self._guard:
            self._timings.append(timing)
        try:
            yield timing
        finally:
            with self._guard:
                self._timings.remove(timing)

    def add(self, peer: str, train: Train) -> None:
        """A train is over."""
        with self._guard:
            trains = self._trains.setdefault(peer, [])
            trains.append(train)
            if len(trains) > KEPT:
                del trains[0]

    def take(self) -> dict[str, tuple[Train, ...]]:
        """Those that were not taken before; one is over when nothing came for IDLE_S."""
        with self._guard:
            timings = list(self._timings)
        for timing in timings:
            timing.rest(time.time())
        with self._guard:
            taken, self._trains = self._trains, {}
        return {peer: tuple(trains) for peer, trains in taken.items()}


class Timing:
    """Times what comes in over one connection; for the thread that reads it, but for `rest`.

    Packets come as super-packets of up to 45 frames, and a piece that is read ends in the midst of one. What counts is
    what had arrived by a time, whether it was read yet or not: without that, trains of 64 KiB were 15 % too fast.
    """

    def __init__(self, peer: str, arrivals: Arrivals, out_of_order: Callable[[], int]) -> None:
        """`out_of_order` counts the packets that came in while one before them was missing."""
        self._peer = peer
        self._arrivals = arrivals
        self._out_of_order = out_of_order
        self._guard = threading.Lock()
        self._astray = 0
        self._mended_s = 0.0
        self._read = 0
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)
        # What TCP allowed, in bytes a second and in a burst: during the train, and as the newest head says.
        self._allowed = self._newest = (0, 0)
        # Where the last whole train ended: when, after how many bytes, and how much was out of order by then.
        self._since: tuple[float, int, int] | None = None

    def begin(self, head: Frame, head_bytes: int) -> None:
        """A frame's head has come, and its elements follow."""
        with self._guard:
            self._begin(head, head_bytes)

    def _begin(self, head: Frame, head_bytes: int) -> None:
        self._read += head_bytes
        if not head.follows:
            self._end()
            self._first = self._since = None
        self._newest = head.allowed_bytes_s, head.burst_bytes_s
        if head.allowed_bytes_s:
            allowed, burst = self._allowed
            least = min(allowed or head.allowed_bytes_s, head.allowed_bytes_s)
            self._allowed = least, max(burst, head.burst_bytes_s)

    def note(self, at_s: float, count: int, waiting: int) -> None:
        """So many bytes more were read; by `at_s` they and those that are `waiting` had arrived."""
        with self._guard:
            self._note(at_s, count, waiting)

    def rest(self, now_s: float) -> None:
        """The train is over if nothing came for long. Any thread may say so."""
        with self._guard, suppress(OSError):  # the connection may be closed just now
            if self._first is not None and now_s - self._last[0] > IDLE_S:
                self._end()
                self._first = self._since = None

    def _note(self, at_s: float, count: int, waiting: int) -> None:
        self._read += count
        now = (at_s, self._read + waiting)
        if self._since is None:
            self._since = (*now, self._out_of_order())
        elif at_s - self._since[0] >= HOLES_S:
            self._end_with_holes(now)
        if self._first is None or self._paused(now):
            self._end()
            self._start(now)
        elif at_s > self._last[0]:
            self._last = now
            long = self._bytes >= LEAST_BYTES and at_s - self._first[0] >= MOST_S
            if long or self._bytes >= MOST_BYTES:
                self._end()
                self._start(now)

    @property
    def _bytes(self) -> int:
        return self._last[1] - self._first[1] if self._first else 0

    def _paused(self, now: tuple[float, int]) -> bool:
        if self._first is None or self._bytes < PACED_BYTES:
            return False
        pace_s = (self._last[0] - self._first[0]) / self._bytes
        return now[0] - self._last[0] > PAUSE * pace_s * (now[1] - self._last[1]) + PAUSE_S

    def _start(self, now: tuple[float, int]) -> None:
        """A train begins with what comes after this."""
        self._first = self._last = now
        self._allowed = self._newest

    def _end(self) -> None:
        """The train, if there is one, is over."""
        if self._first is not None and self._bytes >= LEAST_BYTES:
            began_s, seconds = self._first[0], self._last[0] - self._first[0]
            train = Train(round(began_s, 5), round(seconds, 6), self._bytes, *self._allowed)
            if self._whole():
                self._arrivals.add(self._peer, train)
                self._since = (*self._last, self._astray)

    def _end_with_holes(self, now: tuple[float, int]) -> None:
        """No whole train came for HOLES_S: tell what did come, if packets did all the while."""
        assert self._since is not None
        (began_s, began, astray), missed = self._since, self._out_of_order()
        came = now[1] - began
        self._since = (*now, missed)
        if came >= LEAST_BYTES and (missed - astray) * SEGMENT_BYTES >= HOLES * came:
            train = Train(round(began_s, 5), round(now[0] - began_s, 6), came, *self._newest)
            self._arrivals.add(self._peer, train)

    def _whole(self) -> bool:
        """Whether nothing was missing in the train that is over, nor shortly before it."""
        before, self._astray = self._astray, self._out_of_order()
        if self._astray - before > OUT_OF_ORDER:
            self._mended_s = self._last[0] + MENDING_S
        return self._first is not None and self._first[0] > self._mended_s
