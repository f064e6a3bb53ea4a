"""The base class of codecs, codecs that round each value by itself, the residual of errors, and a tensor's bytes."""

from __future__ import annotations

import ctypes
import threading
from abc import ABC, abstractmethod
from math import ceil, inf, isfinite, log2

import torch


class Codec(ABC):
    """Turns a chunk of float32 into fewer bytes and back. Stateless: a chunk decodes without any other chunk.

    A value that is not finite makes the values that share its scale not finite either, so that diverging training is
    noticed.
    """

    #: The codec's name in a plan.
    name: str
    #: The codec's number on the wire.
    code: int

    @abstractmethod
    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes (uint8, flat) of `values` (float32, flat, at least one)."""

    @abstractmethod
    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return `elements` values (float32, flat) of bytes from `encode` (uint8, flat, of a length that `fits`)."""

    def fits(self, elements: int, length: int) -> bool:
        """Return whether `elements` values may take `length` bytes; receivers check this before they read a payload."""
        return length == self.size(elements)

    def scale(self, values: torch.Tensor) -> float:
        """Return the power of two, at least 1, by which `values` must be divided so that none is too large."""
        return 1.0

    @abstractmethod
    def size(self, elements: int) -> int:
        """Return the number of bytes that `elements` values take."""

    def most(self, elements: int) -> int:
        """Return the largest number of bytes that `elements` values take."""
        return self.size(elements)


class Plain(Codec):
    """The codec `fp32`, which sends float32 unchanged."""

    name = "fp32"
    code = 1

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of a copy of the values."""
        return values.contiguous().view(torch.uint8).clone()

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the bytes as float32, a view of the same memory."""
        return data.view(torch.float32)

    def size(self, elements: int) -> int:
        """Return four bytes for each value."""
        return 4 * elements


def bytes_of(values: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the host as bytes, without a copy.

    The view keeps the tensor alive: queued bytes are still being sent when an aborted round drops its tensor.
    """
    memory = (ctypes.c_ubyte * values.nbytes).from_address(values.data_ptr())
    memory.values = values  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


class Half(Codec):
    """Rounds to a 16-bit type. Finite values beyond its largest number become that number; the residual keeps the rest.

    fp16 has 11 significant bits, and fewer for values below the least normal one, 6.1e-5. bf16 has 8, and float32's
    range.
    """

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self._dtype = dtype
        self._most = torch.finfo(dtype).max

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of the values as 16-bit floats, rounded to nearest, ties to even."""
        bounded = values.clamp(-self._most, self._most)
        if not isfinite(values.sum()):  # to look at each value by itself would take five times as long
            bounded = torch.where(values.isinf(), values, bounded)
        return bounded.to(self._dtype).view(torch.uint8)

    def decode(self, data: torch.Tensor, elements: int) -> torch.Tensor:
        """Return the 16-bit floats as float32, without loss."""
        return data.view(self._dtype).to(torch.float32)

    def scale(self, values: torch.Tensor) -> float:
        """Return 1 unless a finite value is beyond fp16's largest number, as in sums weighted by samples."""
        if self._dtype is not torch.float16 or not self._most < (largest := float(values.abs().amax())) < inf:
            return 1.0
        return float(2.0 ** ceil(log2(largest / self._most)))

    def size(self, elements: int) -> int:
        """Return two bytes for each value."""
        return 2 * elements


class Residual:
    """The error-feedback residual: what one member's encodings of a tensor left out so far, in units of weighted sums.

    The caller keeps a residual for each tensor that it reduces in many rounds, and passes it with the tensor. The
    residual is added to the member's contribution. It takes four bytes an element once a codec has left something out.
    At any time, over all rounds so far and all members:

        Σ of weight × value contributed  =  Σ of mean × weights' sum  +  Σ of residuals

    up to float32's rounding, if `decay` is 1. With a decay β below 1 only the part β is added, and the rest is dropped:
    e ← βe + Δ − what was sent. A residual belongs to the member, not to its links, so it survives any swap of plans.

    Args:
        decay: The part β of the residual that is added to the next contribution, in [0, 1].
    """

    def __init__(self, decay: float = 1.0) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"a residual's decay is {decay}: write a number from 0 to 1")
        self.decay = decay
        self.values: torch.Tensor | None = None
        self._guard = threading.Lock()

    def check(self, elements: int) -> None:
        """Check that the residual fits a tensor of `elements` elements.

        Raises:
            ValueError: The residual is that of a tensor of another size.
        """
        if self.values is not None and len(self.values) != elements:
            raise ValueError(f"a residual of {len(self.values)} elements can't go with a tensor of {elements}")

    def open(self, elements: int) -> None:
        """Prepare for a tensor of `elements` elements, which `check` has accepted."""
        if self.values is None:
            self.values = torch.zeros(elements, dtype=torch.float32, device="cpu")

    def take(self, start: int, stop: int) -> torch.Tensor:
        """Return the residual of the elements [start, stop), times `decay`, and clear it: the caller sends it."""
        with self._guard:
            taken = self._room[start:stop] * self.decay
            self._room[start:stop].zero_()
        return taken

    def store(self, start: int, error: torch.Tensor) -> None:
        """Add the `error` of an encoding to the residual of the elements from `start` on.

        A round that runs beside another one may store its errors after the other has taken the residual, and before
        the other stores its own. Errors that are not finite are dropped: they show in this round's result, and must not
        spoil all later rounds.
        """
        finite = torch.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0)
        with self._guard:
            self._room[start : start + len(error)].add_(finite)

    @property
    def _room(self) -> torch.Tensor:
        assert self.values is not None
        return self.values

    def state(self) -> torch.Tensor | None:
        """Return a copy for a checkpoint; None if no codec has left anything out."""
        return None if self.values is None else self.values.clone()

    def restore(self, state: torch.Tensor | None) -> None:
        """Restore the residual that `state` returned."""
        self.values = None if state is None else state.clone()
