"""The memory of rounds: what is summed up, and what becomes of it on the wire."""

from __future__ import annotations

from collections.abc import Callable

import torch

from testbed.sync.transport import Scratch

#: Element types that travel as they are, by their code on the wire. Codes from 3 to 15 are the codecs'.
DTYPES: dict[int, torch.dtype] = {1: torch.float32, 2: torch.float64, 16: torch.float16, 17: torch.bfloat16}
CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in DTYPES.items()}


class Sums:
    """Room for the sums (of type `summed`) of elements of type `dtype`, and for what becomes of them on the wire.

    16-bit types are summed in float32: 8 bits of mantissa lose a ninth summand altogether. A chunk's `place` is
    where its elements stand as they travel, in their own type; it takes the room of its sums, or half of it.
    """

    def __init__(self, elements: int, dtype: torch.dtype, scratch: Scratch) -> None:
        self.elements = elements
        self.dtype = dtype
        self.wide = dtype.itemsize >= torch.float32.itemsize
        self.summed = dtype if self.wide else torch.float32
        self._bytes = scratch.room(elements * self.summed.itemsize)
        self._sums = torch.frombuffer(self._bytes, dtype=self.summed)
        self._placed = self._sums if self.wide else self._sums.view(dtype)

    def view(self, start: int, stop: int) -> torch.Tensor:
        """The sums of the elements [start, stop)."""
        return self._sums[start:stop]

    def placed(self, start: int, stop: int) -> torch.Tensor:
        """The elements [start, stop) in their own type, where they stand once `settle` was called or they came."""
        first = start if self.wide else 2 * start
        return self._placed[first : first + stop - start]

    def place(self, start: int, stop: int) -> memoryview:
        """The bytes of `placed`."""
        first = start * self._sums.element_size()
        return self._bytes[first : first + (stop - start) * self.dtype.itemsize]

    def keep(self, start: int, stop: int, elements: torch.Tensor) -> memoryview:
        """Have elements stand at [start, stop) as they came, to be sent on."""
        self.placed(start, stop).copy_(elements)
        return self.place(start, stop)

    def settle(self, start: int, stop: int) -> None:
        """Turn the sums of [start, stop) into elements of their own type."""
        if not self.wide:
            self.placed(start, stop).copy_(self.view(start, stop).to(self.dtype))


class Rooms:
    """Room for the sums of rounds; kept, since zeroing new memory costs as much as a copy."""

    def __init__(self) -> None:
        self._rooms: list[Scratch] = []
        self._users: list[int] = []
        self._sums: list[Sums | None] = []

    def take(self, round_number: int, free: Callable[[int], bool], elements: int, dtype: torch.dtype) -> Sums:
        """The room of a round; `free` says whether an older round needs its own no more."""
        room = next((i for i, user in enumerate(self._users) if free(user)), len(self._rooms))
        if room == len(self._rooms):
            self._rooms.append(Scratch())
            self._users.append(round_number)
            self._sums.append(None)
        self._users[room] = round_number
        sums = self._sums[room]
        if sums is None or (sums.elements, sums.dtype) != (elements, dtype):
            sums = self._sums[room] = Sums(elements, dtype, self._rooms[room])
        return sums
