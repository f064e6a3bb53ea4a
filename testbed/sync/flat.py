"""Several tensors as one: what is reduced is one flat tensor, whatever the number of layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def gather(tensors: Sequence[torch.Tensor], into: torch.Tensor) -> torch.Tensor:
    """Copy the tensors, one after the other, into a flat one of their size."""
    torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=into)
    return into


def scatter(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy a flat tensor's elements back into the tensors."""
    start = 0
    with torch.no_grad():
        for tensor in tensors:
            stop = start + tensor.numel()
            tensor.copy_(values[start:stop].view_as(tensor))
            start = stop


def room(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A flat tensor of float32 as large as all of them, on their device, of zeros. ValueError when there are none."""
    if not tensors:
        raise ValueError("there is nothing to synchronize: no parameters")
    return torch.zeros(sum(tensor.numel() for tensor in tensors), device=tensors[0].device)
