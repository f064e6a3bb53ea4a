"""The queue of frames for a connection to a next hop: the most urgent frame goes first."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from testbed.sync.transport.frame import Frame

#: A frame's priority: the least goes first.
Priority = tuple[float, ...]

#: L of NetStorm's rule for auxiliary routes, in chunks: a route takes over chunks when more than 2 L wait for the
#: direct connection and fewer than L wait for the route's own first hop.
SPILL_CHUNKS = 1


def nothing() -> None:
    """Do nothing: the default `sent` of a frame."""


class Item(NamedTuple):
    """A frame that waits to be sent, with its priority and what to call after it was sent."""

    priority: Priority
    #: The order among frames of one priority.
    order: int
    frame: Frame
    payload: memoryview
    #: Called when the payload may change again.
    sent: Callable[[], None] = nothing
    #: The table whose auxiliary routes may take the frame over, or None.
    table: int | None = None
    #: The time (monotonic) at which the frame was queued.
    queued_s: float = 0.0


class Feed(NamedTuple):
    """An auxiliary route, and the queue that it relieves."""

    #: The queue of the direct connection to the route's end.
    queue: SendQueue
    #: The route's table, and its number there.
    table: int
    number: int
    #: The number of members that forward.
    left: int


class SendQueue:
    """A queue of frames for one connection, or for several that share the work.

    `put` never blocks. Payloads are views into the callers' buffers, so queued frames take no memory of their own, and
    the buffers bound their number (for all-reduce, the chunks of two rounds). So a receiver that sends on never blocks
    on a full queue, and no cycle of peers can deadlock. Frames on auxiliary routes bring their own memory; a member
    that forwards one accepts no other until it was sent.

    A queue of an auxiliary route takes frames over from its feeds, when nothing waits in it and in `beside`.

    Args:
        beside: The queue of the direct connection to the same peer, or None.
    """

    def __init__(self, beside: SendQueue | None = None) -> None:
        lock = threading.Lock()
        self._filled = threading.Condition(lock)
        self._passed = threading.Condition(lock)
        self._heap: list[Item] = []
        self._order = count()
        self._closed = False
        self._beside: SendQueue | None = None
        self._feeds: tuple[Feed, ...] = ()
        self._besides: frozenset[SendQueue] = frozenset()
        self._takers: frozenset[SendQueue] = frozenset()
        self._waited_s = 0.0
        self._taken = 0
        if beside is not None:
            self.defer_to(beside)

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def relieved(self) -> bool:
        """True if auxiliary routes take frames over from this queue."""
        return bool(self._takers)

    def feed(self, feeds: Sequence[Feed]) -> None:
        """Take frames over from these feeds from now on, in place of the ones named before."""
        with self._filled:
            before, self._feeds = self._feeds, tuple(feeds)
        for feed in before:
            feed.queue.relieve(self, False)
        for feed in feeds:
            feed.queue.relieve(self, True)

    def relieve(self, taker: SendQueue, takes: bool) -> None:
        """Wake `taker` from now on when many frames wait here, or no longer if not `takes`."""
        with self._filled:
            self._takers = self._takers | {taker} if takes else self._takers - {taker}

    def defer_to(self, beside: SendQueue) -> None:
        """Take frames over only while nothing waits in `beside`, in place of the queue that was named before."""
        with self._filled:
            self._beside = beside
            self._filled.notify()
        beside.tell_empty(self)

    def tell_empty(self, other: SendQueue) -> None:
        """Wake `other` from now on when this queue becomes empty."""
        with self._filled:
            self._besides |= {other}

    def put(
        self,
        priority: Priority,
        frame: Frame,
        payload: memoryview,
        sent: Callable[[], None] = nothing,
        table: int | None = None,
    ) -> None:
        """Queue a frame.

        Args:
            priority: The least priority goes first; frames of one priority go in the order of the calls.
            frame: The frame's head.
            payload: The payload, which must not change until `sent` is called.
            sent: Called when the payload may change.
            table: The table whose auxiliary routes may take the frame over, or None.
        """
        with self._filled:
            item = Item(priority, next(self._order), frame, payload, sent, table, time.monotonic())
            heapq.heappush(self._heap, item)
            self._filled.notify()
            takers = self._takers if table is not None and len(self._heap) > 2 * SPILL_CHUNKS else ()
        for taker in takers:
            taker.wake()

    def wake(self) -> None:
        """Wake a thread blocked in `take`."""
        with self._filled:
            self._filled.notify()

    def take(self) -> Item | None:
        """Wait for the next frame. Returns None after `close`, when the queue is empty."""
        with self._filled:
            while not self._heap and not self._closed:
                if (taken := self._take_over()) is not None:
                    return taken
                self._filled.wait()
            item = self._pop() if self._heap else None
            besides = () if self._heap else self._besides
        for other in besides:
            other.wake()
        return item

    def spill(self, table: int) -> Item | None:
        """Return the next frame for an auxiliary route, if more than 2 SPILL_CHUNKS wait here; None otherwise."""
        with self._filled:
            if len(self._heap) <= 2 * SPILL_CHUNKS:
                return None
            return self._pop() if self._heap[0].table == table else None

    def pass_on(self, frame: Frame, payload: memoryview) -> None:
        """Queue a frame of another member after earlier ones, and wait until it was sent or the queue is closed."""
        passed = threading.Event()

        def sent() -> None:
            with self._passed:
                passed.set()
                self._passed.notify_all()

        self.put((0,), frame, payload, sent)
        with self._passed:
            self._passed.wait_for(lambda: passed.is_set() or self._closed)

    def close(self, drop: bool = False) -> None:
        """Close the queue: `take` ends after the last frame, or with `drop` at once."""
        self.feed(())
        with self._filled:
            self._closed = True
            self._beside = None  # its `_besides` has this queue: a cycle
            if drop:
                self._heap.clear()
            self._filled.notify_all()
            self._passed.notify_all()

    def queued(self) -> tuple[float, int]:
        """Return the seconds that frames taken since the last call had waited, summed, and the number of the frames."""
        with self._filled:
            waited, self._waited_s = self._waited_s, 0.0
            taken, self._taken = self._taken, 0
            return waited, taken

    def _take_over(self) -> Item | None:
        if self._beside is not None and len(self._beside) >= SPILL_CHUNKS:
            return None
        for queue, table, number, left in self._feeds:
            if (item := queue.spill(table)) is not None:
                return item._replace(frame=item.frame._replace(table=table, route=number, left=left))
        return None

    def _pop(self) -> Item:
        item = heapq.heappop(self._heap)
        self._waited_s += time.monotonic() - item.queued_s
        self._taken += 1
        return item
