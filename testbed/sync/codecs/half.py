"""Two bytes a value: IEEE half precision and bfloat16."""

from __future__ import annotations

import torch

from testbed.sync.codecs.codec import Codec


class Half(Codec):
    """Rounds to a 16-bit type, and to its largest number what lies beyond; the residual carries the rest."""

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self._dtype = dtype
        self._most = torch.finfo(dtype).max

    @classmethod
    def fp16(cls) -> Half:
        """11 significant bits; the least normal value is 6.1e-5, below that precision falls off."""
        return cls("fp16", 3, torch.float16)

    @classmethod
    def bf16(cls) -> Half:
        """8 significant bits, float32's range."""
        return cls("bf16", 4, torch.bfloat16)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """To nearest, ties to even."""
        return values.clamp(-self._most, self._most).to(self._dtype).view(torch.uint8)

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Exact."""
        return data.view(self._dtype).to(torch.float32)

    def fits(self, elements: int, length: int) -> bool:
        """Two bytes each."""
        return length == self.size(elements)

    def size(self, elements: int) -> int:
        """Two bytes each."""
        return 2 * elements
