"""Codecs of two bytes a value: IEEE half precision and bfloat16."""

from __future__ import annotations

import torch

from testbed.sync.codecs.codec import Codec


class Half(Codec):
    """Rounds to a 16-bit type. Values beyond its largest number become that number; the residual keeps the rest."""

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self._dtype = dtype
        self._most = torch.finfo(dtype).max

    @classmethod
    def fp16(cls) -> Half:
        """Return the codec with 11 significant bits; below the least normal value, 6.1e-5, precision falls."""
        return cls("fp16", 3, torch.float16)

    @classmethod
    def bf16(cls) -> Half:
        """Return the codec with 8 significant bits and float32's range."""
        return cls("bf16", 4, torch.bfloat16)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of the values as 16-bit floats, rounded to nearest, ties to even."""
        return values.clamp(-self._most, self._most).to(self._dtype).view(torch.uint8)

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the 16-bit floats as float32, without loss."""
        return data.view(self._dtype).to(torch.float32)

    def size(self, elements: int) -> int:
        """Return two bytes for each value."""
        return 2 * elements
