"""A tensor's elements as the bytes that they are."""

from __future__ import annotations

import ctypes

import torch


def bytes_of(values: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host, which stays for as long as the view does.

    What was queued is still being sent when a round that was ended lets go of its tensor.
    """
    memory = (ctypes.c_ubyte * values.nbytes).from_address(values.data_ptr())
    memory.values = values  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")
