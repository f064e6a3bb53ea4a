"""How those who watch a controller learn that something changed."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """A number that grows with each change, for any number of tasks to wait for."""

    def __init__(self) -> None:
        self._number = 1
        self._changed = asyncio.Event()

    def announce(self) -> None:
        """Something changed: those who wait go on."""
        self._number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int) -> int:
        """Wait until something changed since `seen` (what this returned before; 0 at first); the newest number."""
        while self._number == seen:
            await self._changed.wait()
        return self._number
