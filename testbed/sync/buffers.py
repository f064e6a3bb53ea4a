"""Memory that sockets and PyTorch share: bytes that `recv_into` fills and a tensor adds."""

from __future__ import annotations

import torch

#: Element types that travel as they are, by their code on the wire.
DTYPES: dict[int, torch.dtype] = {1: torch.float32, 2: torch.float64}
CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in DTYPES.items()}


class Buffer:
    """`count` elements, set aside once; `bytes` and `tensor` are the same memory."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self.bytes = memoryview(bytearray(count * dtype.itemsize))
        self.tensor = torch.frombuffer(self.bytes, dtype=dtype)

    def slice(self, start: int, stop: int) -> memoryview:
        """The bytes of the elements [start, stop)."""
        size = self.tensor.element_size()
        return self.bytes[start * size : stop * size]


class Scratch:
    """One chunk's room for one connection: grows to the largest chunk seen and stays."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(0))

    def room(self, length: int) -> memoryview:
        """Bytes to receive `length` bytes into."""
        if length > len(self._bytes):
            self._bytes = memoryview(bytearray(length))
        return self._bytes[:length]


class Alternating:
    """Two buffers that rounds take in turns, by the parity of their number.

    Round k+1 may begin to fill while this member is still in round k, so two are needed. Two are enough: once round
    k+1 is over here, every member has finished round k, so nothing of round k is left in a sender's queue.
    """

    def __init__(self) -> None:
        self._pair: list[Buffer | None] = [None, None]

    def take(self, round_number: int, count: int, dtype: torch.dtype) -> Buffer:
        """The buffer of a round, set aside anew only where the tensor's shape changed."""
        buffer = self._pair[round_number % 2]
        if buffer is None or len(buffer.tensor) != count or buffer.tensor.dtype != dtype:
            buffer = self._pair[round_number % 2] = Buffer(count, dtype)
        return buffer


class Staging:
    """Host memory that a device's tensors are copied through, page-locked so that the copies run at full speed."""

    def __init__(self) -> None:
        self._host: torch.Tensor | None = None

    def fetch(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of `values` in host memory."""
        if self._host is None or self._host.shape != values.shape or self._host.dtype != values.dtype:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return self._host.copy_(values)
