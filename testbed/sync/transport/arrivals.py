"""Measures the rate of each path into this member by the arrival times of packets that were sent back to back.

    sender      [frame][frame][frame]       [frame]      frames 2 and 3 follow: each waited while another was sent
    path        [ frame  ][ frame  ][ frame  ]           the slowest link spreads the packets
    receiver     |------- a train ----------|            rate: bytes without the first packet / seconds

Packets that leave faster than a link can carry them arrive at that link's rate, independent of the round trip, of their
number and of acknowledgements on the way back. The kernel stamps each arrival, so it does not matter when this process
runs. Only differences of times are used, so no clock is shared.

After a loss, TCP delivers nothing until the lost packet is sent again, and then all later bytes at once, faster than
any link. So a train with packets out of order is dropped, and so are trains shortly after it. Where losses go on, as
on a link that fell and whose queue has overflown since, the kernel's count of received packets is used instead. It
includes packets behind a gap. The packets of a span make a train only if more follow: the last span of a transfer
contains the time in which TCP repairs the last losses.

Two causes of a pause look alike. A sender without more frames begins another train. A sender that TCP limits states the
limit in its frames (`allowed_bytes_s`, `burst_bytes_s`), so a reader of the train knows that the path carries at least
that much.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from testbed.protocol import Train
from testbed.sync.transport.frame import Frame

#: The shortest train that is kept: a dozen packets. Fewer say too little.
LEAST_BYTES = 16 * 1024

#: A train's pace is known from this many bytes on, and with it whether a pause followed. Without this limit, a window
#: of ten packets and the first of the next, one round trip later, made 1 Mbit/s of a link of 26.
PACED_BYTES = 8 * 1024

#: A train ends at this many bytes, or after this many seconds, so that a change shows within a round.
MOST_BYTES, MOST_S = 256 * 1024, 0.25

#: TCP paused (its window was used up, or it repaired a loss) if a gap is PAUSE times as long as the train's pace
#: predicts, plus PAUSE_S.
PAUSE, PAUSE_S = 4.0, 0.005

#: More packets out of order than this are a loss. Trains that begin within LOSS_S after it are dropped: TCP repairs a
#: loss in about a round trip.
OUT_OF_ORDER, LOSS_S = 2, 0.3

#: If at least the part GAPS of the packets of GAPS_S came out of order, packets of SEGMENT_BYTES are counted instead of
#: bytes. Over a link that fell from 30 to 5 Mbit/s, no train without a loss came for 6 s, which are several rounds.
GAPS_S, GAPS, SEGMENT_BYTES = 0.25, 0.25, 1448
#: The longest time over which packets are counted until they add up to LEAST_BYTES: 0.3 Mbit/s bring these in 0.44 s.
MOST_GAPS_S = 1.0

#: A connection is idle after this many seconds without data: its sender has no more frames before the next round.
IDLE_S = 0.1

#: The most trains kept of each peer until `take`. The newest ones suffice.
KEPT = 256


class PacketCount(NamedTuple):
    """The data packets that a connection has received."""

    #: The time of the count (Unix time).
    at_s: float
    #: All packets since the connection began.
    received: int
    #: The packets that arrived while an earlier one was missing.
    out_of_order: int


class Arrivals:
    """The trains that came in over all connections and from probes, by peer. Any thread may call."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._trains: dict[str, list[Train]] = {}
        self._timings: list[Timing] = []

    @contextmanager
    def timing(self, peer: str, packets: Callable[[], PacketCount]) -> Iterator[Timing]:
        """Time a connection from a peer while the context lasts. `packets` counts the packets that it received."""
        timing = Timing(peer, self, packets)
        with self._guard:
            self._timings.append(timing)
        try:
            yield timing
        finally:
            with self._guard:
                self._timings.remove(timing)

    def add(self, peer: str, train: Train) -> None:
        """Keep a train that a peer sent."""
        with self._guard:
            trains = self._trains.setdefault(peer, [])
            trains.append(train)
            if len(trains) > KEPT:
                del trains[0]

    def take(self) -> dict[str, tuple[Train, ...]]:
        """Return the trains since the last call. Trains of connections that are idle for IDLE_S end with the call."""
        with self._guard:
            timings = list(self._timings)
        for timing in timings:
            timing.end_if_idle(time.time())
        with self._guard:
            taken, self._trains = self._trains, {}
        return {peer: tuple(trains) for peer, trains in taken.items()}


class Timing:
    """Measures the trains of one connection. Only the thread that reads it calls methods, except `end_if_idle`.

    Packets arrive as super-packets of up to 45 frames, and a piece that is read ends inside one. So a train counts the
    bytes that had arrived by a time, read or not. When only the bytes that were read counted, trains of 64 KiB were
    15 % too fast.
    """

    def __init__(self, peer: str, arrivals: Arrivals, packets: Callable[[], PacketCount]) -> None:
        self._peer = peer
        self._arrivals = arrivals
        self._packets = packets
        self._guard = threading.Lock()
        self._out_of_order = 0
        #: The time until which trains are dropped after a loss.
        self._lossy_until_s = 0.0
        self._read = 0
        #: When the current train's first and last bytes arrived, and the number of bytes that had arrived by then.
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)
        #: The rate that TCP allows and its burst rate, in bytes/s: the least in the train, and in the newest head.
        self._allowed = self._newest = (0, 0)
        #: The count when the last train without a loss ended, or when the last frame began that followed no other.
        self._since: PacketCount | None = None
        #: A train of counted packets, which is kept once LEAST_BYTES more came.
        self._counted: Train | None = None

    def begin(self, head: Frame, head_bytes: int) -> None:
        """Record that a frame's head was read. Its payload comes next."""
        with self._guard:
            self._read += head_bytes
            if not head.follows:
                self._end()
                self._first, self._since, self._counted = None, self._packets(), None
            self._newest = head.allowed_bytes_s, head.burst_bytes_s
            if head.allowed_bytes_s:
                allowed, burst = self._allowed
                least = min(allowed or head.allowed_bytes_s, head.allowed_bytes_s)
                self._allowed = least, max(burst, head.burst_bytes_s)

    def note(self, at_s: float, count: int, waiting: int) -> None:
        """Record that `count` bytes were read: they, and `waiting` bytes more, had arrived by `at_s` (Unix time)."""
        with self._guard:
            self._read += count
            now = (at_s, self._read + waiting)
            if self._since is None:
                self._since = self._packets()
            elif self._counted is not None or at_s - self._since.at_s >= GAPS_S:
                self._count_with_gaps()
            if self._first is None or self._paused(now):
                self._end()
                self._start(now)
            elif at_s > self._last[0]:
                self._last = now
                long = self._bytes >= LEAST_BYTES and at_s - self._first[0] >= MOST_S
                if long or self._bytes >= MOST_BYTES:
                    self._end()
                    self._start(now)

    def end_if_idle(self, now_s: float) -> None:
        """End the train if nothing has come for IDLE_S. Any thread may call."""
        with self._guard, suppress(OSError):  # the connection may close at the same time
            if self._since is None or now_s - max(self._last[0], self._since.at_s) <= IDLE_S:
                return
            if not self._count_with_gaps():
                self._end()
                self._first, self._since = None, self._packets()

    @property
    def _bytes(self) -> int:
        return self._last[1] - self._first[1] if self._first else 0

    def _paused(self, now: tuple[float, int]) -> bool:
        if self._first is None or self._bytes < PACED_BYTES:
            return False
        pace_s = (self._last[0] - self._first[0]) / self._bytes
        return now[0] - self._last[0] > PAUSE * pace_s * (now[1] - self._last[1]) + PAUSE_S

    def _start(self, now: tuple[float, int]) -> None:
        """Begin a train with the bytes that arrive after `now`."""
        self._first = self._last = now
        self._allowed = self._newest

    def _end(self) -> None:
        if self._first is not None and self._bytes >= LEAST_BYTES:
            began_s, seconds = self._first[0], round(self._last[0] - self._first[0], 6)
            train = Train(round(began_s, 5), seconds, self._bytes, *self._allowed)
            now = self._packets()
            if self._is_complete(now):
                self._keep_counted()
                if seconds:  # two super-packets may come within half a microsecond, which tells no rate
                    self._arrivals.add(self._peer, train)
                self._since = now

    def _count_with_gaps(self) -> bool:
        """Make a train of the packets since `_since` if they came with gaps. Returns whether they did."""
        assert self._since is not None
        before, now = self._since, self._packets()
        received, out_of_order = now.received - before.received, now.out_of_order - before.out_of_order
        seconds = now.at_s - before.at_s
        gaps = out_of_order > OUT_OF_ORDER and out_of_order >= GAPS * received
        enough = received * SEGMENT_BYTES >= LEAST_BYTES
        if enough:
            self._keep_counted()
        if seconds >= GAPS_S and (enough or not gaps or seconds >= MOST_GAPS_S):
            self._since, self._counted = now, None
            if gaps and enough:
                self._counted = Train(round(before.at_s, 5), round(seconds, 6), received * SEGMENT_BYTES, *self._newest)
        return gaps

    def _keep_counted(self) -> None:
        """Keep the train of counted packets: the transfer went on behind it."""
        if self._counted is not None:
            self._arrivals.add(self._peer, self._counted)
            self._counted = None

    def _is_complete(self, now: PacketCount) -> bool:
        """Return whether no packet was lost in the train that ends, or shortly before it."""
        before, self._out_of_order = self._out_of_order, now.out_of_order
        if self._out_of_order - before > OUT_OF_ORDER:
            self._lossy_until_s = self._last[0] + LOSS_S
        return self._first is not None and self._first[0] > self._lossy_until_s
