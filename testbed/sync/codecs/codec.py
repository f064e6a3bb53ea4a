"""What a codec is, and the one that changes nothing."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod

import torch


class Codec(ABC):
    """Turns a chunk of float32 into fewer bytes and back. Stateless: a chunk decodes by itself, wherever it comes from.

    `code` names the codec in a frame's head; a value that is not finite makes those that share its scale not finite
    either, so that a training that diverged is seen to.
    """

    name: str
    code: int

    @abstractmethod
    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The bytes (uint8, flat) of `values` (float32, flat, at least one)."""

    @abstractmethod
    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """What `encode` made of `elements` values, as float32; `data` is uint8, flat, and `fits`."""

    @abstractmethod
    def fits(self, elements: int, length: int) -> bool:
        """Whether `elements` values may have become `length` bytes: what a receiver checks before it takes any."""

    @abstractmethod
    def size(self, elements: int) -> int:
        """The bytes that `elements` values become."""


class Plain(Codec):
    """float32 as it is."""

    name = "fp32"
    code = 1

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """A copy."""
        return values.contiguous().view(torch.uint8).clone()

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """The same memory."""
        return data.view(torch.float32)

    def fits(self, elements: int, length: int) -> bool:
        """Four bytes each."""
        return length == self.size(elements)

    def size(self, elements: int) -> int:
        """Four bytes each."""
        return 4 * elements


def bytes_of(values: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the host as bytes, without a copy.

    The view keeps the tensor alive: queued bytes are still being sent when an aborted round drops its tensor.
    """
    memory = (ctypes.c_ubyte * values.nbytes).from_address(values.data_ptr())
    memory.values = values  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")
