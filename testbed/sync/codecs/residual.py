"""What encodings have left out of one tensor that is reduced again and again."""

from __future__ import annotations

import torch


class Residual:
    """One member's debt: what it should have passed on of its sums and has not, in units of weighted sums.

    Its caller keeps one for each tensor that it reduces again and again, and hands it over with the tensor; it is
    then added to what the member contributes. Takes memory, a float32 an element, only once a codec left something
    out. At any time, over all rounds so far and all members:

        Σ of weight × value contributed  =  Σ of mean × weights' sum  +  Σ of residuals

    up to float32's rounding, if all of it is paid. With a `decay` of β below 1 only β of it is, and the rest forgiven:
    e ← βe + Δ − what was passed on. The debt is the member's, wherever plans have it send: it survives any swap.
    """

    def __init__(self, decay: float = 1.0) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"a residual's decay is {decay}; write instead: from 0 to 1")
        self.decay = decay
        self.values: torch.Tensor | None = None

    def open(self, elements: int) -> None:
        """Have room for a tensor of `elements`; ValueError when another's is owed."""
        if self.values is None:
            self.values = torch.zeros(elements)
        elif len(self.values) != elements:
            raise ValueError(f"a residual of {len(self.values)} elements can't go with a tensor of {elements}")

    def pay(self, start: int, stop: int) -> torch.Tensor:
        """What is to be paid of the elements [start, stop), and owed no more: it is the caller's to pass on."""
        owed = self._room[start:stop] * self.decay
        self._room[start:stop].zero_()
        return owed

    def owe(self, start: int, error: torch.Tensor) -> None:
        """Owe `error` from element `start` on.

        What is not finite is forgotten: it made the round's result what it is, and must not spoil every later one.
        """
        torch.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0, out=self._room[start : start + len(error)])

    @property
    def _room(self) -> torch.Tensor:
        assert self.values is not None
        return self.values

    def state(self) -> torch.Tensor | None:
        """What a checkpoint keeps."""
        return None if self.values is None else self.values.clone()

    def restore(self, state: torch.Tensor | None) -> None:
        """Owe what `state` returned."""
        self.values = None if state is None else state.clone()
