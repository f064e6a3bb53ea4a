"""Copies between a list of tensors and one flat tensor, so that one round reduces all layers.

PyTorch is loaded when a function is called, because a scheme's options are read without PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def gather(tensors: Sequence[torch.Tensor], into: torch.Tensor | None = None) -> torch.Tensor:
    """Copy the tensors one after the other into a flat tensor.

    Args:
        tensors: Tensors of any shapes.
        into: A flat tensor with as many elements as all of them. None takes a new one from `room`.

    Returns:
        The flat tensor.
    """
    import torch

    into = room(tensors) if into is None else into
    torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=into)
    return into


def scatter(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy the elements of a flat tensor back into the tensors, in the order of `gather`."""
    import torch

    start = 0
    with torch.no_grad():
        for tensor in tensors:
            stop = start + tensor.numel()
            tensor.copy_(values[start:stop].view_as(tensor))
            start = stop


@contextmanager
def showing(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Set the tensors to the elements of `values` inside the context, and back to their own values at its end."""
    own = gather(tensors)
    scatter(values, tensors)
    try:
        yield
    finally:
        scatter(own, tensors)


def room(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return zeros for `gather`: a flat float32 tensor with as many elements as the tensors, on their device.

    Raises:
        ValueError: The list is empty.
    """
    import torch

    if not tensors:
        raise ValueError("there is nothing to synchronize: the model has no parameters")
    return torch.zeros(sum(tensor.numel() for tensor in tensors), dtype=torch.float32, device=tensors[0].device)
