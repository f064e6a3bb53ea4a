"""A transport inside one process that delays and reorders what members send to each other."""

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
from testbed.sync.transport.listener import Received, hand_on
from testbed.sync.transport.outbox import Outbox
from testbed.sync.transport.routes import RouteTable
from testbed.sync.transport.send_queue import Priority
from testbed.sync.transport.sender import CLOSE_S, Sender
from testbed.sync.transport.settings import TransportSettings

#: Carriers from each member to each other one. One may be held up while the other brings what was sent later.
CARRIERS = 2
#: Most letters arrive at once; one of so many takes its time.
SLOW_ONE_OF, SLOW_S = 40, 0.003
#: A plan's root can't reach one of so many members, and does not hear from one.
UNREACHED_ONE_OF = 40


class Letter(NamedTuple):
    """A frame on its way, how urgent it is, and what to call when its payload may change again."""

    priority: Priority
    frame: Frame
    payload: memoryview
    sent: Callable[[], None]


class Carrier:
    """Brings one letter after the other from `source` to a member: any of the oldest round's that are there."""

    def __init__(self, source: str, target: AllReduceGroup, wire: FrameFormat, draw: random.Random) -> None:
        self._source = source
        self._target = target
        self._wire = wire
        self._draw = draw
        self._filled = threading.Condition()
        self._letters: list[Letter] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"carrier of {source}", daemon=True)
        self._thread.start()

    def put(self, letter: Letter) -> None:
        with self._filled:
            self._letters.append(letter)
            self._filled.notify()

    def close(self) -> None:
        with self._filled:
            self._closed = True
            self._filled.notify()

    def join(self) -> None:
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (letter := self._next()) is not None:
            if not self._draw.randrange(SLOW_ONE_OF):
                time.sleep(self._draw.uniform(0, SLOW_S))
            try:
                self._bring(letter)
            except SyncError as error:
                self._target.fail(error)
                return

    def _next(self) -> Letter | None:
        with self._filled:
            self._filled.wait_for(lambda: self._letters or self._closed)
            if self._closed:
                return None
            oldest = min(letter.priority[0] for letter in self._letters)
            chosen = self._draw.choice([i for i, letter in enumerate(self._letters) if letter.priority[0] == oldest])
            return self._letters.pop(chosen)

    def _bring(self, letter: Letter) -> None:
        """What a listener does with what it reads."""
        head = self._wire.unpack(memoryview(self._wire.pack(letter.frame.sealed(letter.payload))))
        payload = memoryview(bytearray(letter.payload))
        letter.sent()
        head.verify(payload)
        hello = Greeting(self._source)
        hand_on(self._target.receiver(hello), hello, Received(self._source, head, payload, len(payload), 0.0))


class Conversation:
    """One end of a talk between a plan's root and another member: what either says takes its time.

    With `deaf`, the first word of the other end is not heard in time.
    """

    def __init__(
        self, said: SimpleQueue[SwapMessage | None], heard: SimpleQueue[SwapMessage | None], slow_s: float, deaf: bool
    ) -> None:
        self._said = said
        self._heard = heard
        self._slow_s = slow_s
        self._deaf = deaf

    def send(self, message: SwapMessage) -> None:
        self._said.put(message)

    def receive(self) -> SwapMessage:
        time.sleep(self._slow_s)
        if self._deaf:
            self._deaf = False
            raise TimeoutError("nothing came")
        if (message := self._heard.get()) is None:
            raise ConnectionError("closed")
        return message

    def close(self) -> None:
        self._said.put(None)


class Post:
    """All carriers among members. `outbox` is what a group's `make_outbox` takes."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._guard = threading.Lock()
        self._members: dict[str, AllReduceGroup] = {}
        self._carriers: dict[tuple[str, str], list[Carrier]] = {}
        self._talks: list[threading.Thread] = []

    def admit(self, group: AllReduceGroup) -> None:
        """From now on it gets its letters."""
        self._members[group.settings.member] = group

    def outbox(
        self,
        settings: TransportSettings,
        header_bytes: int,
        roster: Mapping[str, tuple[str, int]],
        on_failure: Callable[[str, str], None],
    ) -> Outbox:
        return _Letterbox(self, settings, header_bytes, roster, on_failure)

    def send(self, source: str, target: str, wire: FrameFormat, letter: Letter) -> None:
        with self._guard:
            carriers = self._carriers.setdefault((source, target), [])
            if not carriers:
                draws = [random.Random(self._draw.random()) for _ in range(CARRIERS)]
                carriers += [Carrier(source, self._members[target], wire, draw) for draw in draws]
            carrier = self._draw.choice(carriers)
        carrier.put(letter)

    def connect(self, member: str, given_up: threading.Event) -> SwapPeer:
        """What a group's `swaps` connect with: now and then a member can't be reached, or is not heard."""
        with self._guard:
            fails, deaf = (not self._draw.randrange(UNREACHED_ONE_OF) for _ in range(2))
            slow_s = [self._draw.choice([0, self._draw.uniform(0, SLOW_S)]) for _ in range(2)]
        if fails or given_up.is_set():
            raise ConnectionRefusedError(f"{member} can't be reached")
        there, back = SimpleQueue[SwapMessage | None](), SimpleQueue[SwapMessage | None]()
        serving = Conversation(back, there, slow_s[0], False)
        thread = threading.Thread(target=self._serve, args=(self._members[member], serving), daemon=True)
        thread.start()
        with self._guard:
            self._talks = [talk for talk in self._talks if talk.is_alive()] + [thread]
        return Conversation(there, back, slow_s[1], deaf)

    @staticmethod
    def _serve(group: AllReduceGroup, root: Conversation) -> None:
        with suppress(OSError):  # a root that gives up before it asks for something
            group.swaps.serve(root)

    def draw_crowded(self) -> bool:
        with self._guard:
            return not self._draw.randrange(2)

    def close(self) -> None:
        """Bring nothing more."""
        carriers = [carrier for carriers in self._carriers.values() for carrier in carriers]
        for carrier in carriers:
            carrier.close()
        for carrier in carriers:
            carrier.join()
        for talk in self._talks:
            talk.join(CLOSE_S)


class _Letterbox(Outbox):
    """What a member sends, by post."""

    def __init__(
        self,
        post: Post,
        settings: TransportSettings,
        header_bytes: int,
        roster: Mapping[str, tuple[str, int]],
        on_failure: Callable[[str, str], None],
    ) -> None:
        super().__init__(settings, header_bytes, roster, on_failure)
        self._post = post
        self._me = settings.member
        self._format = FrameFormat(header_bytes)

    def connect(self, table: RouteTable) -> list[Sender]:
        return []

    def follow(self, table: RouteTable) -> None:
        return

    def crowded(self, peer: str) -> bool:
        """Now and then, as on a path."""
        return self._post.draw_crowded()

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
            self._post.send(self._me, peer, self._format, Letter(priority, frame, payload, partial(sent, peer)))
