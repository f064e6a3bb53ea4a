"""How fast frames came in while their sender had more to send: what the path from it carries.

    sender      [frame][frame][frame]       [frame]      the second and third follow: they waited for the one before
    on the way  [ frame  ][ frame  ][ frame  ]           the slowest link spreads them out
    receiver     |------- a train ----------|            its bytes, but the first packet's, over the time that they took

Packets that leave faster than a link can pass them on arrive at that link's rate, whatever the round trip is, however
few they are, and whatever acknowledgements do on the way back. The kernel's time of arrival counts, so that it does not
matter when this process gets to run; only differences do, so no clock is shared.

What is missing is not passed on until it comes again, and then with all that came after it, faster than any link:
trains in which packets came out of order are left out, and those shortly after them. Where that goes on, as over a link
that fell and whose queue runs over ever since, the packets themselves are counted, whether anything before them is
missing or not: the kernel knows how many came.

Two things look alike and are told apart: a sender without more to send begins another train; one whose TCP holds it
back says what that lets go (`allowed_bytes_s`, `burst_bytes_s`), and whoever reads the train knows that the path
carries at least as much.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

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

#: Packets, of SEGMENT_BYTES, are counted over so long where at least this part of them came out of order. Over a link
#: that fell from 30 to 5 Mbit/s no whole train came for 6 s, several rounds long.
HOLES_S, HOLES, SEGMENT_BYTES = 0.25, 0.25, 1448
#: They are counted for longer, up to this, until they are LEAST_BYTES: 0.3 Mbit/s bring those in 0.44 s.
MOST_HOLES_S = 1.0

#: A sender that had no more to send is not heard of again before the next round.
IDLE_S = 0.1

#: Trains kept for each peer until somebody takes them. Of more the newest say enough.
KEPT = 256


class Packets(NamedTuple):
    """The data packets that a connection brought by a time, and those of them before which one was missing."""

    at_s: float
    came: int
    astray: int


class Arrivals:
    """The trains that came in over all connections and by probes, by peer. Any thread may call."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._trains: dict[str, list[Train]] = {}
        self._timings: list[Timing] = []

    @contextmanager
    def timing(self, peer: str, packets: Callable[[], Packets]) -> Iterator[Timing]:
        """Time a connection from a peer; see Timing."""
        timing = Timing(peer, self, packets)
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

    def __init__(self, peer: str, arrivals: Arrivals, packets: Callable[[], Packets]) -> None:
        self._peer = peer
        self._arrivals = arrivals
        self._packets = packets
        self._guard = threading.Lock()
        self._astray = 0
        self._mended_s = 0.0
        self._read = 0
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)
        # What TCP allowed, in bytes a second and in a burst: during the train, and as the newest head says.
        self._allowed = self._newest = (0, 0)
        self._since: Packets | None = None  # as the last whole train ended, or a frame that followed none began

    def begin(self, head: Frame, head_bytes: int) -> None:
        """A frame's head has come, and its elements follow."""
        with self._guard:
            self._begin(head, head_bytes)

    def _begin(self, head: Frame, head_bytes: int) -> None:
        self._read += head_bytes
        if not head.follows:
            self._end()
            self._first, self._since = None, self._packets()
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
        """End the train if nothing came for long. Any thread may call."""
        with self._guard, suppress(OSError):  # the connection may be closed just now
            if self._since is None or now_s - max(self._last[0], self._since.at_s) <= IDLE_S:
                return
            if not self._count_with_holes():
                self._end()
                self._first, self._since = None, self._packets()

    def _note(self, at_s: float, count: int, waiting: int) -> None:
        self._read += count
        now = (at_s, self._read + waiting)
        if self._since is None:
            self._since = self._packets()
        elif at_s - self._since.at_s >= HOLES_S:
            self._count_with_holes()
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
            now = self._packets()
            if self._whole(now):
                self._arrivals.add(self._peer, train)
                self._since = now

    def _count_with_holes(self) -> bool:
        """Tell what came since the last whole train, in packets, if there are holes in it; return whether there are."""
        assert self._since is not None
        before, now = self._since, self._packets()
        came, astray, seconds = now.came - before.came, now.astray - before.astray, now.at_s - before.at_s
        holes = astray > OUT_OF_ORDER and astray >= HOLES * came
        enough = came * SEGMENT_BYTES >= LEAST_BYTES
        if seconds >= HOLES_S and (enough or not holes or seconds >= MOST_HOLES_S):
            self._since = now
            if holes and enough:
                train = Train(round(before.at_s, 5), round(seconds, 6), came * SEGMENT_BYTES, *self._newest)
                self._arrivals.add(self._peer, train)
        return holes

    def _whole(self, now: Packets) -> bool:
        """Whether nothing was missing in the train that is over, nor shortly before it."""
        before, self._astray = self._astray, now.astray
        if self._astray - before > OUT_OF_ORDER:
            self._mended_s = self._last[0] + MENDING_S
        return self._first is not None and self._first[0] > self._mended_s
