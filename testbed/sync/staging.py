"""Host memory that a device's tensors travel through."""

from __future__ import annotations

import torch


class Staging:
    """Page-locked, so that copies to and from the device run at full speed; page-locking takes longer than they do, so
    what was used is kept: as much as there were tensors in it at once.

    Copies run on streams of their own, one for each direction: they wait for what made the values, and neither for
    what the caller has the device compute since, nor for each other.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}

    def made(self, values: torch.Tensor) -> torch.cuda.Event:
        """The moment at which the caller's stream has made the values; called on its thread."""
        made: torch.cuda.Event = torch.cuda.current_stream(values.device).record_event()
        return made

    def fetch(self, values: torch.Tensor, made: torch.cuda.Event) -> torch.Tensor:
        """A copy of `values` in host memory, until it is `put_back`."""
        host = self._room(values)
        stream = self._stream(values.device, "from")
        stream.wait_event(made)
        with torch.cuda.stream(stream):
            host.copy_(values, non_blocking=True)
        stream.synchronize()
        return host

    def put_back(self, host: torch.Tensor, values: torch.Tensor) -> None:
        """Copy it to where it came from. The copy in host memory is not needed any more."""
        stream = self._stream(values.device, "to")
        with torch.cuda.stream(stream):
            values.copy_(host, non_blocking=True)
        stream.synchronize()
        self._free.append(host)

    def _room(self, values: torch.Tensor) -> torch.Tensor:
        for i, host in enumerate(self._free):
            if (host.shape, host.dtype) == (values.shape, values.dtype):
                return self._free.pop(i)
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=True)

    def _stream(self, device: torch.device, way: str) -> torch.cuda.Stream:
        if (device, way) not in self._streams:
            self._streams[device, way] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device, way]
