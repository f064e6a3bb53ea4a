"""Local SGD (Stich 2019, arXiv 1805.09767): steps of one's own, and then on from the members' mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from testbed.sync.outer import Average, Outer
from testbed.sync.strategies.fragment import Fragment
from testbed.sync.strategies.periodic import Periodic
from testbed.sync.strategies.strategy import Reducer, Steps


class LocalSgd(Periodic):
    """Every `every` steps members move to where `outer` takes the mean of what they changed: to the mean, if none. Of
    what codecs left out in a round the part `error_decay` goes with the next."""

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: Steps | None = None,
        every: int = 8,
        outer: Outer | None = None,
        weight: float = 1.0,
        error_decay: float = 1.0,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every}: at least 1 step to a round")
        self._fragment = Fragment(parameters, onward=False, error_decay=error_decay)
        super().__init__(reducer, [self._fragment], outer or Average(), optimizer, weight)
        self._every = every

    def after_step(self) -> None:
        self._steps += 1
        if self._steps == self._began + self._every:
            self._begin(self._fragment)
            self._finish(self._fragment)
            self._end_period()
