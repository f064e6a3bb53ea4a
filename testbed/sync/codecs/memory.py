"""A tensor's elements as the bytes that they are."""

from __future__ import annotations

import ctypes

import torch


def bytes_of(values: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host. It lives as long as the tensor does."""
    return memoryview((ctypes.c_ubyte * values.nbytes).from_address(values.data_ptr())).cast("B")
