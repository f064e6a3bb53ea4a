"""DiLoCo (Douillard et al. 2023, arXiv 2311.08105), and streamed in fragments (2025, arXiv 2501.18512, 2.2 and 2.3).

With four steps a period, two fragments and a delay of one step (`=` a reduction under way):

    step         1    2    3    4    5    6    7    8
    fragment 0        o====x              o====x            o  what changed since the anchor goes off
    fragment 1                  o====x              o====x  x  its mean moves the anchor, and that the parameters
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from testbed.sync.outer import Nesterov, Outer
from testbed.sync.strategies.fragment import Fragment, cut
from testbed.sync.strategies.periodic import Periodic
from testbed.sync.strategies.strategy import Reducer, Steps


@dataclass(frozen=True, slots=True)
class Streaming:
    """The model's parameters, in order, in so many `fragments` of about equal size, each synchronized at its own step
    of the period, with `delay` steps' time to go on beside them."""

    fragments: int = 1
    delay: int = 0


#: The whole model at once, and no step until it is reduced.
AT_ONCE = Streaming()


class DiLoCo(Periodic):
    """Every `every` steps `outer`, Nesterov(0.7, 0.9) by default, steps by the mean of what members changed."""

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: Steps | None = None,
        every: int = 32,
        outer: Outer | None = None,
        streaming: Streaming = AT_ONCE,
        weight: float = 1.0,
    ) -> None:
        count, delay = streaming.fragments, streaming.delay
        if every < 1 or count < 1 or every % count:
            raise ValueError(f"every={every}, fragments={count}: both at least 1, and every a multiple of fragments")
        if not 0 <= delay < every:
            raise ValueError(f"delay={delay}: from 0 to every - 1 = {every - 1} steps")
        fragments = [Fragment(part, onward=False) for part in cut(parameters, count)]
        super().__init__(reducer, fragments, outer or Nesterov(), optimizer, weight)
        self._every = every
        self._delay = delay

    def after_step(self) -> None:
        """Finish the fragments whose time is over, begin those whose step has come."""
        self._steps += 1
        for fragment in self._fragments:
            if fragment.under_way and self._steps == fragment.begun + self._delay:
                self._finish(fragment)
        for number, fragment in enumerate(self._fragments):
            if (self._steps - self._began) % self._every == self._offset(number):
                self._begin(fragment)
                if not self._delay:
                    self._finish(fragment)
        if self._steps == self._began + self._every:
            self._end_period()

    def over(self, rounds: int, taken: int) -> bool:
        """Streamed in n fragments, n - 1 of them have changed since their last round when training ends: as many of
        the rounds are kept for them. Groups may settle in up to a period's rounds more."""
        parts = len(self._fragments)
        return taken >= max(1, rounds - parts + 1) * self._every // parts

    def _offset(self, number: int) -> int:
        """The step of each period at which a fragment goes off: they are spread evenly, the last at its end."""
        return (number + 1) * self._every // len(self._fragments) % self._every
