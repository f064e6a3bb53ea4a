"""The base class of codecs, the codec that changes nothing, and the bytes of a tensor."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod

import torch


class Codec(ABC):
    """Turns a chunk of float32 into fewer bytes and back. Stateless: a chunk decodes without any other chunk.

    A value that is not finite makes the values that share its scale not finite either, so that divergence of a training
    is noticed.
    """

    #: The codec's name in a plan.
    name: str
    #: The codec's number on the wire.
    code: int

    @abstractmethod
    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes (uint8, flat) of `values` (float32, flat, at least one)."""

    @abstractmethod
    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return `elements` values (float32, flat) of bytes from `encode` (uint8, flat, of a length that `fits`)."""

    def fits(self, elements: int, length: int) -> bool:
        """Return whether `elements` values may take `length` bytes; a receiver checks it before it reads them."""
        return length == self.size(elements)

    @abstractmethod
    def size(self, elements: int) -> int:
        """Return the number of bytes that `elements` values take."""


class Plain(Codec):
    """The codec `fp32`, which sends float32 unchanged."""

    name = "fp32"
    code = 1

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of a copy of the values."""
        return values.contiguous().view(torch.uint8).clone()

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the bytes as float32, a view of the same memory."""
        return data.view(torch.float32)

    def size(self, elements: int) -> int:
        """Return four bytes for each value."""
        return 4 * elements


def bytes_of(values: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the host as bytes, without a copy.

    The view keeps the tensor alive: queued bytes are still being sent when an aborted round drops its tensor.
    """
    memory = (ctypes.c_ubyte * values.nbytes).from_address(values.data_ptr())
    memory.values = values  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")
