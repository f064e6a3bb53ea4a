"""A transport inside one process that delays and reorders the frames and messages between members."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from testbed.sync.allreduce.early_swaps import SwapMessage, SwapPeer
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.errors import SyncError
from testbed.sync.transport.frame import Frame, FrameFormat, Greeting
from testbed.sync.transport.handshake import TransportSettings
from testbed.sync.transport.listener import Received, dispatch
from testbed.sync.transport.outbox import Outbox, RouteTable
from testbed.sync.transport.send_queue import Priority
from testbed.sync.transport.sender import CLOSE_S, Sender

#: The connections from each member to each other one. One may be slow while the other delivers later frames.
CONNECTIONS = 2
#: One frame in SLOW_ONE_OF takes up to SLOW_S seconds; the others arrive at once.
SLOW_ONE_OF, SLOW_S = 40, 0.003
#: A plan's root can't reach one member in this many, and gets no answer from another one in this many.
UNREACHED_ONE_OF = 40


class DelayedFrame(NamedTuple):
    """A frame in flight. `sent` is called when its payload may change again."""

    priority: Priority
    frame: Frame
    payload: memoryview
    sent: Callable[[], None]


class DelayedConnection:
    """Delivers frames from `source` to a member in order of rounds; within a round the order is random."""

    def __init__(self, source: str, target: AllReduceGroup, wire: FrameFormat, draw: random.Random) -> None:
        self._source = source
        self._target = target
        self._wire = wire
        self._draw = draw
        self._filled = threading.Condition()
        self._frames: list[DelayedFrame] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"delayed frames of {source}", daemon=True)
        self._thread.start()

    def put(self, delayed: DelayedFrame) -> None:
        with self._filled:
            self._frames.append(delayed)
            self._filled.notify()

    def close(self) -> None:
        with self._filled:
            self._closed = True
            self._filled.notify()

    def join(self) -> None:
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (delayed := self._next()) is not None:
            if not self._draw.randrange(SLOW_ONE_OF):
                time.sleep(self._draw.uniform(0, SLOW_S))
            try:
                self._deliver(delayed)
            except SyncError as error:
                self._target.fail(error)
                return

    def _next(self) -> DelayedFrame | None:
        with self._filled:
            self._filled.wait_for(lambda: self._frames or self._closed)
            if self._closed:
                return None
            oldest = min(delayed.priority[0] for delayed in self._frames)
            chosen = self._draw.choice([i for i, delayed in enumerate(self._frames) if delayed.priority[0] == oldest])
            return self._frames.pop(chosen)

    def _deliver(self, delayed: DelayedFrame) -> None:
        """Pass a frame to the target, as its listener does."""
        head = self._wire.unpack(memoryview(self._wire.pack(delayed.frame.sealed(delayed.payload))))
        payload = memoryview(bytearray(delayed.payload))
        delayed.sent()
        head.verify(payload)
        hello = Greeting(self._source)
        dispatch(self._target.receiver(hello), hello, Received(self._source, head, payload, len(payload), 0.0))


class DelayedSwapPeer:
    """One end of a connection between a plan's root and another member, with delays.

    With `deaf`, the first message of the other end does not arrive in time.
    """

    def __init__(
        self,
        outgoing: SimpleQueue[SwapMessage | None],
        incoming: SimpleQueue[SwapMessage | None],
        slow_s: float,
        deaf: bool,
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._slow_s = slow_s
        self._deaf = deaf

    def send(self, message: SwapMessage) -> None:
        self._outgoing.put(message)

    def receive(self) -> SwapMessage:
        time.sleep(self._slow_s)
        if self._deaf:
            self._deaf = False
            raise TimeoutError("nothing came")
        if (message := self._incoming.get()) is None:
            raise ConnectionError("closed")
        return message

    def close(self) -> None:
        self._outgoing.put(None)


class DelayedNetwork:
    """All connections among members. `outbox` is for a group's `make_outbox`, `connect` for its `swaps.connect`."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._guard = threading.Lock()
        self._members: dict[str, AllReduceGroup] = {}
        self._connections: dict[tuple[str, str], list[DelayedConnection]] = {}
        self._serving: list[threading.Thread] = []

    def add(self, group: AllReduceGroup) -> None:
        """Deliver frames to a member's group from now on."""
        self._members[group.settings.member] = group

    def outbox(
        self,
        settings: TransportSettings,
        header_bytes: int,
        roster: Mapping[str, tuple[str, int]],
        on_failure: Callable[[str, str], None],
    ) -> Outbox:
        return _DelayedOutbox(self, settings, header_bytes, roster, on_failure)

    def send(self, source: str, target: str, wire: FrameFormat, delayed: DelayedFrame) -> None:
        with self._guard:
            connections = self._connections.setdefault((source, target), [])
            if not connections:
                draws = [random.Random(self._draw.random()) for _ in range(CONNECTIONS)]
                connections += [DelayedConnection(source, self._members[target], wire, draw) for draw in draws]
            connection = self._draw.choice(connections)
        connection.put(delayed)

    def connect(self, member: str, given_up: threading.Event) -> SwapPeer:
        """Connect to a member for an early commit; see UNREACHED_ONE_OF."""
        with self._guard:
            fails, deaf = (not self._draw.randrange(UNREACHED_ONE_OF) for _ in range(2))
            slow_s = [self._draw.choice([0, self._draw.uniform(0, SLOW_S)]) for _ in range(2)]
        if fails or given_up.is_set():
            raise ConnectionRefusedError(f"{member} can't be reached")
        there, back = SimpleQueue[SwapMessage | None](), SimpleQueue[SwapMessage | None]()
        serving = DelayedSwapPeer(back, there, slow_s[0], False)
        thread = threading.Thread(target=self._serve, args=(self._members[member], serving), daemon=True)
        thread.start()
        with self._guard:
            self._serving = [other for other in self._serving if other.is_alive()] + [thread]
        return DelayedSwapPeer(there, back, slow_s[1], deaf)

    @staticmethod
    def _serve(group: AllReduceGroup, root: DelayedSwapPeer) -> None:
        with suppress(OSError):  # the root gave up before its first message
            group.swaps.serve(root)

    def draw_crowded(self) -> bool:
        with self._guard:
            return not self._draw.randrange(2)

    def close(self) -> None:
        """Stop delivering."""
        connections = [connection for connections in self._connections.values() for connection in connections]
        for connection in connections:
            connection.close()
        for connection in connections:
            connection.join()
        for thread in self._serving:
            thread.join(CLOSE_S)


class _DelayedOutbox(Outbox):
    """An outbox that sends through a DelayedNetwork."""

    def __init__(
        self,
        network: DelayedNetwork,
        settings: TransportSettings,
        header_bytes: int,
        roster: Mapping[str, tuple[str, int]],
        on_failure: Callable[[str, str], None],
    ) -> None:
        super().__init__(settings, header_bytes, roster, on_failure)
        self._network = network
        self._member = settings.member
        self._format = FrameFormat(header_bytes)

    def connect(self, table: RouteTable) -> list[Sender]:
        return []

    def follow(self, table: RouteTable) -> None:
        return

    def crowded(self, peer: str) -> bool:
        """Return a random answer."""
        return self._network.draw_crowded()

    def put(
        self,
        peers: Sequence[str],
        priority: Priority,
        frame: Frame,
        payload: memoryview,
        sent: Callable[[str], None],
        table: int | None = None,
    ) -> None:
        for peer in peers:
            self._network.send(
                self._member, peer, self._format, DelayedFrame(priority, frame, payload, partial(sent, peer))
            )
