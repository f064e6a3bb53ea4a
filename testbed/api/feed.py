"""Tells all who follow a state what becomes different in it, as it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from testbed.api.stream import State, Update, snapshot_message, update_between, update_message

log = logging.getLogger(__name__)

#: Nobody sees more than ten pictures a second as ten, and what took part in one of them is told in one.
LEAST_APART_S = 0.1
#: What nothing announces, traffic above all, is looked at so often while somebody follows.
LOOK_S = 1.0
#: So many updates may wait for a follower that reads slowly; what comes then it lacks, and asks for a snapshot.
MOST_WAITING = 64


class Follower:
    """Gets messages until it leaves."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MOST_WAITING)
        self._ask = ask
        self._wants_all = True

    def want_snapshot(self) -> None:
        """It lacks something."""
        self._wants_all = True
        self._ask()

    async def next(self) -> dict[str, Any]:
        """The next message for it, as soon as there is one."""
        return await self._waiting.get()

    def offer(self, number: int, state: State, update: Update) -> None:
        """The state of this number, and how it came from that of the one before."""
        if self._wants_all:
            self._wants_all = False
            while not self._waiting.empty():
                self._waiting.get_nowait()
            self._waiting.put_nowait(snapshot_message(number, state))
        elif update and not self._waiting.full():
            self._waiting.put_nowait(update_message(number, update))


class StateFeed:
    """Follows what `take` returns, called in a thread, while it has followers. Lives on one event loop."""

    def __init__(self, take: Callable[[], State]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._followers: set[Follower] = set()
        self._work: asyncio.Task[None] | None = None
        self._number = 0
        self._state: State = {}

    def announce(self) -> None:
        """Something may have become different. Any thread may call this."""
        if self._followers:
            with suppress(RuntimeError):  # the loop has ended since
                self._loop.call_soon_threadsafe(self._changed.set)

    @contextmanager
    def following(self) -> Iterator[Follower]:
        """One more follower."""
        follower = Follower(self._changed.set)
        self._followers.add(follower)
        self._changed.set()
        if self._work is None:
            self._work = asyncio.create_task(self._follow())
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            if not self._followers and self._work is not None:
                self._work.cancel()
                self._work = None

    async def _follow(self) -> None:
        while True:
            self._changed.clear()
            try:
                state = await asyncio.to_thread(self._take)
            except Exception:  # a network that is being swapped may be of one mind a moment later
                log.exception("the state cannot be told")
                await asyncio.sleep(LOOK_S)
                continue
            update = update_between(self._state, state)
            if update:
                self._number += 1
                self._state = state
            for follower in self._followers:
                follower.offer(self._number, self._state, update)
            await asyncio.sleep(LEAST_APART_S)
            try:
                await asyncio.wait_for(self._changed.wait(), LOOK_S)
            except TimeoutError:
                continue
