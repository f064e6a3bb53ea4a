"""What SparseLoCo sends of a tensor: the largest of each chunk, in few bits."""

from __future__ import annotations

import torch
from torch.nn import functional

from testbed.sync.codecs.bins import binned


def compressed(values: torch.Tensor, top_k: int, side: int, bits: int | None) -> torch.Tensor:
    """`values` (of any shape) where they are the largest `top_k` by magnitude of their chunk, and zeros elsewhere.

    A chunk is a tile of `side` × `side` of a tensor of two dimensions or more, taken as a matrix of its first and all
    others, or as many elements of a vector in a row; those at the ends may be smaller. With `bits`, what is kept
    becomes the mean of its bin, of 2^bits for the whole tensor.
    """
    is_matrix = values.dim() > 1
    matrix = values.reshape(len(values) if is_matrix else 1, -1)
    height, width = (side, side) if is_matrix else (1, side * side)
    chunks = _tiles(matrix, height, width)
    places = chunks.abs().topk(min(top_k, chunks.shape[1]), dim=1, sorted=False).indices
    kept = chunks.gather(1, places)
    if bits is not None:
        kept = _in_bins(kept, bits)
    thinned = torch.zeros_like(chunks).scatter_(1, places, kept)
    return _untiled(thinned, matrix.shape, height, width).reshape(values.shape)


def _in_bins(kept: torch.Tensor, bits: int) -> torch.Tensor:
    """Each value as the mean of its bin; zeros, which chunks that are not full have, stay zeros and don't count."""
    some = kept != 0
    values = kept[some].view(1, -1).cpu()
    if not values.numel():
        return kept
    chosen, means = binned(values, torch.tensor([[values.numel()]]), bits)
    return kept.masked_scatter(some, means[0, chosen[0].long()].to(kept.device))


def _tiles(matrix: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """A tile a row; what lies beyond the matrix is zeros."""
    rows, columns = matrix.shape
    whole = functional.pad(matrix, (0, -columns % width, 0, -rows % height))
    down, across = whole.shape[0] // height, whole.shape[1] // width
    return whole.view(down, height, across, width).transpose(1, 2).reshape(down * across, height * width)


def _untiled(tiles: torch.Tensor, shape: torch.Size, height: int, width: int) -> torch.Tensor:
    """The matrix of that shape again."""
    rows, columns = shape
    down, across = -(-rows // height), -(-columns // width)
    whole = tiles.view(down, across, height, width).transpose(1, 2).reshape(down * height, across * width)
    return whole[:rows, :columns]
