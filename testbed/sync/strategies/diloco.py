"""DiLoCo (Douillard et al. 2023, arXiv 2311.08105), also streaming (2025, arXiv 2501.18512, sections 2.2 and 2.3).

With four steps a period, two fragments and a delay of one step (`=` a reduction under way):

    step         1    2    3    4    5    6    7    8
    fragment 0        o====x              o====x            o  the change since the anchor is sent
    fragment 1                  o====x              o====x  x  its mean moves the anchor and the parameters
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from testbed.sync.strategies.fragment import Fragment, cut
from testbed.sync.strategies.periodic import Nesterov, Outer, Periodic
from testbed.sync.strategies.strategy import Reducer


class DiLoCo(Periodic):
    """DiLoCo: every `every` steps an outer optimizer steps by the mean of the members' changes.

    Args:
        reducer: The session.
        parameters: The tensors to synchronize, float32, on one device.
        optimizer: The inner optimizer, or None if the loop calls `after_step` itself.
        every: Steps in a period, a multiple of the number of fragments.
        outer: The outer optimizer; Nesterov(0.7, 0.9) if None.
        fragments: Parts of the model, of about equal size, each synchronized at its own step of the period.
        delay: Steps taken while a fragment is reduced, below `every`.
        weight: This member's weight in the mean.

    Raises:
        ValueError: `every`, `fragments` or `delay` is out of its range, or there are fewer tensors than fragments.
    """

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        every: int = 32,
        outer: Outer | None = None,
        fragments: int = 1,
        delay: int = 0,
        weight: float = 1.0,
    ) -> None:
        if every < 1 or fragments < 1 or every % fragments:
            raise ValueError(
                f"every={every}, fragments={fragments}: write at least 1 for both, and every as a multiple of fragments"
            )
        if not 0 <= delay < every:
            raise ValueError(f"delay={delay}: write 0 to every - 1 = {every - 1} steps")
        parts = [Fragment(part, onward=False) for part in cut(parameters, fragments)]
        super().__init__(reducer, parts, outer or Nesterov(), optimizer, weight)
        self._every = every
        self._delay = delay

    def after_step(self) -> None:
        """Finish the fragments whose delay has passed, and begin those whose step of the period it is."""
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

    @property
    def elastic_misfit(self) -> str:
        """The reason why members can't leave and join under a delay; empty without one."""
        if not self._delay:
            return ""
        return "rounds that overlap steps leave members no moment to come back: leave out `delay`"

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether the steps and a final `settle` make enough rounds.

        With n fragments, n - 1 have changed since their last round when training ends, so n - 1 rounds are left to
        `settle`. Under a plan with groups `settle` may take up to a period's rounds more.
        """
        parts = len(self._fragments)
        return taken >= max(1, rounds - parts + 1) * self._every // parts

    def _offset(self, number: int) -> int:
        """Return the step of a period at which a fragment is sent: spread evenly, the last at the period's end."""
        return (number + 1) * self._every // len(self._fragments) % self._every
