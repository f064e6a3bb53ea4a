"""Frames that wait for a connection to a next hop: the most urgent goes first."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from testbed.sync.transport.frame import Frame

#: Least goes first.
Priority = tuple[float, ...]

#: L of NetStorm's rule for auxiliary routes, in chunks: one takes over what waits for the direct way when more than
#: 2 L chunks do, and fewer than L wait for its own first hop.
SPILL_CHUNKS = 1


def nothing() -> None:
    """What a frame whose payload nobody else uses calls when it was sent."""


class Item(NamedTuple):
    """A frame to send. `sent` is called once its payload may change again; the auxiliary routes of `table` may have it,
    or none."""

    priority: Priority
    order: int
    frame: Frame
    payload: memoryview
    sent: Callable[[], None] = nothing
    table: int | None = None
    queued_s: float = 0.0


class Feed(NamedTuple):
    """What waits for the direct way to an auxiliary route's end, and the route: its table, its number there, how many
    inner members it has."""

    queue: SendQueue
    table: int
    number: int
    left: int


class SendQueue:
    """A queue of frames for one connection, or for several that share the work.

    `put` never blocks: payloads are views into buffers of those who send, so what waits here takes no room of its own
    and is bounded by what they have (for all-reduce, the chunks of two rounds). A receiver that sends on can therefore
    never block on a full queue, and no cycle of peers can deadlock. Frames on auxiliary routes bring their own room;
    a member that forwards one takes no other until it was taken.

    It also takes over, when nothing waits here nor in `beside`, from the `feeds` that have too much.
    """

    def __init__(self, beside: SendQueue | None = None) -> None:
        lock = threading.Lock()
        self._filled = threading.Condition(lock)
        self._passed = threading.Condition(lock)
        self._heap: list[Item] = []
        self._order = count()
        self._closed = False
        self._beside = beside
        self._feeds: tuple[Feed, ...] = ()
        self._besides: frozenset[SendQueue] = frozenset()
        self._takers: frozenset[SendQueue] = frozenset()
        self._waited_s = 0.0
        self._taken = 0
        if beside is not None:
            beside.tell_empty(self)

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def relieved(self) -> bool:
        """Whether others take over what is too much here."""
        return bool(self._takers)

    def feed(self, feeds: Sequence[Feed]) -> None:
        """From now on take over from these, instead of those named before."""
        with self._filled:
            before, self._feeds = self._feeds, tuple(feeds)
        for feed in before:
            feed.queue.relieve(self, False)
        for feed in feeds:
            feed.queue.relieve(self, True)

    def relieve(self, taker: SendQueue, takes: bool) -> None:
        """From now on wake `taker` when there is much here, or no more."""
        with self._filled:
            self._takers = self._takers | {taker} if takes else self._takers - {taker}

    def tell_empty(self, other: SendQueue) -> None:
        """From now on wake `other` when there is nothing here."""
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
        """Have a frame sent, perhaps over an auxiliary route of `table`. `payload` must stay as it is until `sent` is
        called."""
        with self._filled:
            item = Item(priority, next(self._order), frame, payload, sent, table, time.monotonic())
            heapq.heappush(self._heap, item)
            self._filled.notify()
            takers = self._takers if table is not None and len(self._heap) > 2 * SPILL_CHUNKS else ()
        for taker in takers:
            taker.wake()

    def wake(self) -> None:
        """Have who waits in `take` look again."""
        with self._filled:
            self._filled.notify()

    def take(self) -> Item | None:
        """The next frame, once there is one; None when there will be none any more."""
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
        """The next frame, for an auxiliary route of a table, if more wait here than the direct way will soon take."""
        with self._filled:
            if len(self._heap) <= 2 * SPILL_CHUNKS:
                return None
            return self._pop() if self._heap[0].table == table else None

    def pass_on(self, priority: Priority, frame: Frame, payload: memoryview) -> None:
        """Have a frame sent, and wait until it was, or none is any more."""
        passed = threading.Event()

        def sent() -> None:
            with self._passed:
                passed.set()
                self._passed.notify_all()

        self.put(priority, frame, payload, sent)
        with self._passed:
            self._passed.wait_for(lambda: passed.is_set() or self._closed)

    def close(self, drop: bool = False) -> None:
        """Let `take` end once all is taken, or, with `drop`, at once."""
        self.feed(())
        with self._filled:
            self._closed = True
            if drop:
                self._heap.clear()
            self._filled.notify_all()
            self._passed.notify_all()

    def queued(self) -> tuple[float, int]:
        """Seconds that the frames taken since the last call had waited, all together, and how many they were."""
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
