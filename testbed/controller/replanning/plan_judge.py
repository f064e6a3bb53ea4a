"""Plans judged under a view: how long their rounds will take, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import exp

import numpy as np
from numpy.typing import NDArray

from testbed.controller.replanning.foresight import Foresight
from testbed.plan import Plan
from testbed.planning import View

#: Networks that are drawn for a judgement, in pairs that are as far off to either side: a rough simulation takes some
#: milliseconds.
PAIRS = 4

#: What a plan surely saves is so many standard deviations below the mean: in four of five cases it is more.
SURELY = 0.84

#: What a link may carry, as standard deviations of the logarithm below and above what is believed, by link.
Doubts = Mapping[str, tuple[float, float]]


class PlanJudge:
    """Judges plans under one view. The cases are the same for all of them: what one link does is no plan's advantage.

    A link in none of the `doubts` carries what the view says.
    """

    def __init__(self, view: View, doubts: Doubts, foresight: Foresight) -> None:
        self._view = view
        self._doubts = doubts
        self._foresight = foresight
        self._known: dict[int, tuple[Plan, float]] = {}  # by identity: a plan's hash costs as much as some simulations

    def seconds(self, plan: Plan) -> float:
        """Of a whole round, as is to be expected. SimulationError when the plan uses an edge that is not there."""
        if id(plan) not in self._known:
            self._known[id(plan)] = plan, self._foresight.seconds(plan, self._view)
        return self._known[id(plan)][1]

    def saves(self, current: Plan, proposed: Plan, current_s: float) -> float:
        """Seconds that a round under `proposed` is surely shorter by; below zero where it may as well be longer.

        `current_s` is how long rounds are under `current`: that may be known better than it is foreseen.
        """
        before, before_off = self._cases(current)
        part = current_s / self.seconds(current)
        before, before_off = before * part, before_off * part
        after, after_off = self._cases(proposed)
        saved = before - after
        apart = (np.var(saved) + before_off**2 + after_off**2) ** 0.5
        return float(saved.mean() - SURELY * apart)

    @cached_property
    def _views(self) -> list[View]:
        """The cases, drawn when a saving is large enough to be doubted."""
        doubts, names = self._doubts, sorted(self._doubts)
        half = np.random.default_rng(0).standard_normal((PAIRS, len(names)))
        return [
            self._view.scaled({name: exp(z * doubts[name][int(z > 0)]) for name, z in zip(names, row, strict=True)})
            for row in (*half, *-half)
        ]

    def _cases(self, plan: Plan) -> tuple[NDArray[np.float64], float]:
        """Seconds of the plan's rounds in each case, and how far off all of them may be."""
        _, spread = self._foresight.correction(plan)
        rough = np.array([self._foresight.roughly(plan, view) for view in (self._view, *self._views)])
        seconds: NDArray[np.float64] = rough[1:] / rough[0] * self.seconds(plan)
        return seconds, float(seconds.mean() * spread)
