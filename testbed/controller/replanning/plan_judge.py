"""The judgement of plans under a view: the length of their rounds, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import exp

import numpy as np
from numpy.typing import NDArray

from testbed.controller.replanning.prediction import RoundPredictor
from testbed.plan import Plan
from testbed.planning import View
from testbed.planning.conductor import SURELY

#: Pairs of networks that are drawn for a judgement; the two of a pair are off by as much in opposite directions. They
#: are few, since a rough simulation takes some milliseconds.
PAIRS = 4

#: The uncertainty of each link's rate: standard deviations of its logarithm below and above the believed rate.
Doubts = Mapping[str, tuple[float, float]]


class PlanJudge:
    """Judges plans under one view, and under networks drawn around it.

    All plans are judged under the same networks, so that a rate that is drawn high or low favours no plan.

    Args:
        view: The network as it is known.
        doubts: The uncertainty of its links; any other link has the rate in the view.
        predictor: Predicts the rounds of plans.
    """

    def __init__(self, view: View, doubts: Doubts, predictor: RoundPredictor) -> None:
        self._view = view
        self._doubts = doubts
        self._predictor = predictor
        self._known: dict[int, tuple[Plan, float]] = {}  # by identity: a plan's hash costs as much as some simulations

    def seconds(self, plan: Plan) -> float:
        """Return the expected seconds of a whole round.

        Raises:
            SimulationError: the plan uses an edge that the view lacks.
        """
        if id(plan) not in self._known:
            self._known[id(plan)] = plan, self._predictor.predict_s(plan, self._view)
        return self._known[id(plan)][1]

    def sure_saving_s(self, current: Plan, proposed: Plan, current_s: float) -> float:
        """Return the seconds by which rounds get shorter in four of five cases.

        Args:
            current: The plan in force.
            proposed: The plan that may follow it.
            current_s: The seconds of a round under `current`, which may be measured.

        Returns:
            The saving; negative if rounds may well get longer.
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
        """The drawn networks. They are drawn only when a saving is large enough to be doubted."""
        doubts, names = self._doubts, sorted(self._doubts)
        half = np.random.default_rng(0).standard_normal((PAIRS, len(names)))
        return [
            self._view.scaled({name: exp(z * doubts[name][int(z > 0)]) for name, z in zip(names, row, strict=True)})
            for row in (*half, *-half)
        ]

    def _cases(self, plan: Plan) -> tuple[NDArray[np.float64], float]:
        """Return the seconds of the plan's rounds in each drawn network, and their common standard deviation."""
        _, spread = self._predictor.correction(plan)
        rough = np.array([self._predictor.simulate_roughly(plan, view) for view in (self._view, *self._views)])
        seconds: NDArray[np.float64] = rough[1:] / rough[0] * self.seconds(plan)
        return seconds, float(seconds.mean() * spread)
