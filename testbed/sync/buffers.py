"""Buffers in host memory that are used again: one for received bytes, and page-locked ones for a device's tensors.

PyTorch is loaded when a method needs it, because the transport uses this module and the simulator, which reads the
transport's constants, does not load PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Scratch:
    """A buffer that grows to the largest length asked for and is kept: zeroing new memory costs as much as a copy."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(0))

    def room(self, length: int) -> memoryview:
        """Return the buffer's first `length` bytes, with their old contents."""
        if length > len(self._bytes):
            self._bytes = memoryview(bytearray(length))
        return self._bytes[:length]


class PinnedBuffers:
    """Page-locked host copies of a device's tensors.

    Copies to and from page-locked memory run at full speed. Page-locking takes longer than the copy, so PyTorch keeps
    what was freed for the next tensor of about that size.

    Copies run on two streams of their own, one for each direction. A copy waits for the values to be made, but not for
    what the caller has the device compute afterwards, and not for copies in the other direction.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}

    def made(self, values: torch.Tensor) -> torch.cuda.Event:
        """Record an event after the work that makes `values`. Call it on the caller's thread, which has the stream."""
        import torch

        made: torch.cuda.Event = torch.cuda.current_stream(values.device).record_event()
        return made

    def fetch(self, values: torch.Tensor, made: torch.cuda.Event) -> torch.Tensor:
        """Return a copy of `values` in host memory, which the caller owns until `put_back`."""
        import torch

        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True, device="cpu")
        stream = self._stream(values.device, "from")
        stream.wait_event(made)
        with torch.cuda.stream(stream):
            host.copy_(values, non_blocking=True)
        stream.synchronize()
        return host

    def put_back(self, host: torch.Tensor, values: torch.Tensor) -> None:
        """Copy `host`, which `fetch` returned, to the device's `values`."""
        import torch

        stream = self._stream(values.device, "to")
        # Only code in inference mode may change a tensor that was made there.
        with torch.inference_mode(values.is_inference()), torch.cuda.stream(stream):
            values.copy_(host, non_blocking=True)
        stream.synchronize()

    def _stream(self, device: torch.device, direction: str) -> torch.cuda.Stream:
        import torch

        if (device, direction) not in self._streams:
            self._streams[device, direction] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device, direction]
