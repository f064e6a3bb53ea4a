"""Memory that sockets and PyTorch share: bytes that `recv_into` fills and a tensor adds."""

from __future__ import annotations

import ctypes

import torch


def bytes_of(values: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host. It lives as long as the tensor does."""
    return memoryview((ctypes.c_ubyte * values.nbytes).from_address(values.data_ptr())).cast("B")


class Scratch:
    """Room that grows to the most that was asked for and stays: zeroing new memory costs as much as a copy."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(0))

    def room(self, length: int) -> memoryview:
        """The first `length` bytes of it, with whatever was there before."""
        if length > len(self._bytes):
            self._bytes = memoryview(bytearray(length))
        return self._bytes[:length]
