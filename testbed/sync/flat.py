"""Several tensors as one: what is reduced is one flat tensor, whatever the number of layers.

PyTorch is loaded when a function is called: a scheme's file imports this module, and its options need no PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def gather(tensors: Sequence[torch.Tensor], into: torch.Tensor) -> torch.Tensor:
    """Copy the tensors, one after the other, into a flat one of their size."""
    import torch

    torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=into)
    return into


def scatter(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy a flat tensor's elements back into the tensors."""
    import torch

    start = 0
    with torch.no_grad():
        for tensor in tensors:
            stop = start + tensor.numel()
            tensor.copy_(values[start:stop].view_as(tensor))
            start = stop


def room(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A flat tensor of float32 as large as all of them, on their device, of zeros. ValueError when there are none."""
    import torch

    if not tensors:
        raise ValueError("there is nothing to synchronize: no parameters")
    return torch.zeros(sum(tensor.numel() for tensor in tensors), device=tensors[0].device)
