"""Host memory that a device's tensors travel through."""

from __future__ import annotations

import torch


class Staging:
    """Page-locked, so that copies to and from the device run at full speed; page-locking takes longer than they do, so
    what was used is kept: as much as there were tensors in it at once."""

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []

    def fetch(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of `values` in host memory, until it is `put_back`."""
        for i, host in enumerate(self._free):
            if (host.shape, host.dtype) == (values.shape, values.dtype):
                return self._free.pop(i).copy_(values)
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)

    def put_back(self, host: torch.Tensor) -> None:
        """The copy is not needed any more."""
        self._free.append(host)
