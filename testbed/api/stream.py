"""The stream of a state: one snapshot, then numbered updates.

    {"kind": "snapshot", "number": 7, "at_s": 1795966800.0, "state": {section: {key: value}}}
    {"kind": "update", "number": 8, "set": {section: {key: value}}, "removed": {section: [key]}}

An update applies to the state of the number before. A follower that misses a number asks for a snapshot. `at_s` is
when the snapshot was sent, in Unix seconds by this machine's clock: that of a browser may be minutes off.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

#: Seconds between updates at least: people can't follow more than ten pictures a second.
LEAST_APART_S = 0.1
#: Seconds between looks at values that nothing announces, above all traffic, while there are followers.
LOOK_S = 1.0
#: Updates that may wait for a slow follower; it misses later ones, and asks for a snapshot.
MOST_WAITING = 64

#: Section → key → JSON value. A section without values is the same as a missing one.
State = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Update:
    """The difference between two states: new or changed values in `set`, missing keys in `removed`."""

    set: State
    removed: Mapping[str, list[str]]

    def __bool__(self) -> bool:
        return bool(self.set or self.removed)


def update_between(before: State, after: State) -> Update:
    """Return the difference between two states. Values that are the same object count as equal without a comparison."""
    changed, removed = {}, {}
    for section in before.keys() | after.keys():
        old, new = before.get(section, {}), after.get(section, {})
        if other := {key: value for key, value in new.items() if key not in old or _differs(old[key], value)}:
            changed[section] = other
        if gone := [key for key in old if key not in new]:
            removed[section] = gone
    return Update(changed, removed)


def _differs(old: Any, new: Any) -> bool:
    """Return whether two values differ in JSON. In Python False == 0 and 1 == 1.0, also within lists."""
    if old is new:
        return False
    if type(old) is not type(new) or old != new:
        return True
    if isinstance(new, Mapping):
        return any(_differs(old[key], value) for key, value in new.items())
    return isinstance(new, list | tuple) and any(map(_differs, old, new))


class Follower:
    """A client of the stream, with its queue of messages."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MOST_WAITING)
        self._ask = ask
        self._wants_all = True

    def want_snapshot(self) -> None:
        """Ask for a snapshot, after a missed update."""
        self._wants_all = True
        self._ask()

    async def next(self) -> dict[str, Any]:
        """Wait for the next message."""
        return await self._waiting.get()

    def offer(self, number: int, state: State, update: Update, at_s: float) -> None:
        """Queue the state of this number as a snapshot or an update, whichever the follower needs.

        `at_s` is the time (Unix seconds).
        """
        if self._wants_all:
            self._wants_all = False
            while not self._waiting.empty():
                self._waiting.get_nowait()
            self._waiting.put_nowait({"kind": "snapshot", "number": number, "at_s": at_s, "state": state})
        elif update and not self._waiting.full():
            message = {"kind": "update", "number": number, "set": update.set, "removed": update.removed}
            self._waiting.put_nowait(message)


class StateFeed:
    """Sends changes of a state to its followers.

    Args:
        take: Returns the state; called in a thread, and only while there are followers.
        clock: Returns the time (Unix seconds).
    """

    def __init__(self, take: Callable[[], State], clock: Callable[[], float] = time.time) -> None:
        self._take = take
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._followers: set[Follower] = set()
        self._work: asyncio.Task[None] | None = None
        self._number = 0
        self._state: State = {}

    def announce(self) -> None:
        """Look at the state soon, since it may have changed. Any thread may call this."""
        if self._followers:
            with suppress(RuntimeError):  # the loop has ended since
                self._loop.call_soon_threadsafe(self._changed.set)

    @contextmanager
    def following(self) -> Iterator[Follower]:
        """Yield a new follower, which gets messages until the context ends."""
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
            except Exception:  # a network in the middle of a swap may answer a moment later
                log.exception("the state can't be read")
                await asyncio.sleep(LOOK_S)
                continue
            update = update_between(self._state, state)
            if update:
                self._number += 1
                self._state = state
            for follower in self._followers:
                follower.offer(self._number, self._state, update, self._clock())
            await asyncio.sleep(LEAST_APART_S)
            try:
                await asyncio.wait_for(self._changed.wait(), LOOK_S)
            except TimeoutError:
                continue
