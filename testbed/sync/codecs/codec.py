"""The base class of codecs, the codecs that keep each value by itself, and the bytes of a tensor."""

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


class Half(Codec):
    """Rounds to a 16-bit type. Values beyond its largest number become that number; the residual keeps the rest.

    fp16 has 11 significant bits, whose number falls below the least normal value, 6.1e-5; bf16 has 8, and float32's
    range.
    """

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self._dtype = dtype
        self._most = torch.finfo(dtype).max

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of the values as 16-bit floats, rounded to nearest, ties to even."""
        return values.clamp(-self._most, self._most).to(self._dtype).view(torch.uint8)

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the 16-bit floats as float32, without loss."""
        return data.view(self._dtype).to(torch.float32)

    def size(self, elements: int) -> int:
        """Return two bytes for each value."""
        return 2 * elements
