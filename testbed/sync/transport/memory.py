"""Memory that is used again."""

from __future__ import annotations


class Scratch:
    """Room that grows to the most that was asked for and stays: zeroing new memory costs as much as a copy."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(0))

    def room(self, length: int) -> memoryview:
        """The first `length` bytes of it, with whatever was there before."""
        if length > len(self._bytes):
            self._bytes = memoryview(bytearray(length))
        return self._bytes[:length]
