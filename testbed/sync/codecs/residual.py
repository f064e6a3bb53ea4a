"""The error-feedback residual: the errors of codecs on one tensor that is reduced in many rounds."""

from __future__ import annotations

import torch


class Residual:
    """The error that one member's encodings have left out of its sums so far, in units of weighted sums.

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

    def open(self, elements: int) -> None:
        """Prepare for a tensor of `elements` elements.

        Raises:
            ValueError: The residual is that of a tensor of another size.
        """
        if self.values is None:
            self.values = torch.zeros(elements)
        elif len(self.values) != elements:
            raise ValueError(f"a residual of {len(self.values)} elements can't go with a tensor of {elements}")

    def take(self, start: int, stop: int) -> torch.Tensor:
        """Return the residual of the elements [start, stop), times `decay`, and clear it: the caller sends it."""
        taken = self._room[start:stop] * self.decay
        self._room[start:stop].zero_()
        return taken

    def store(self, start: int, error: torch.Tensor) -> None:
        """Store the `error` of an encoding as the residual of the elements from `start` on.

        Errors that are not finite are dropped: they show in this round's result, and must not spoil all later rounds.
        """
        torch.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0, out=self._room[start : start + len(error)])

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
