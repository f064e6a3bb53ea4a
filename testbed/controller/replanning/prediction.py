"""Prediction of the length of whole rounds, by a simulation corrected by measured rounds, and its uncertainty.

    whole round under a plan  =  simulation(plan, view, compute)  ×  correction of the plan

A whole round lasts from the end of one round to the end of the next, so it includes the members' computing. The
simulation leaves out losses of TCP and the time that hosts take. Both depend on the plan more than on the moment, so
each plan has a correction of its own, learned from its measured rounds. These are simulated again in the network of
their time, which is known better afterwards: an error in the present view must not be learned as a plan's.

A plan that was never in force gets two corrections: the model's usual error (start-up of connections, hosts), which
only makes rounds longer, and CHOSEN, because the plan that looks best is often the one that errors in the rates favour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from testbed.plan import Plan
from testbed.planning import View, predict, simulate
from testbed.planning.bound import MOST_BOUNDED, bound
from testbed.planning.conductor import SURELY
from testbed.planning.simulate import HOPS, coarse

#: Rounds that are simulated. The first begins with idle links; the second overlaps with it, as all later ones do.
ROUNDS = 2

#: The most members for which rounds are simulated; beyond it the fluid prediction is used. A simulation looks at all
#: connections whenever one ends.
MOST_SIMULATED = 64

#: Chunks times hops in a rough simulation: it is within 8 % of the exact one in a sixth of its time.
ROUGH_HOPS = 300

#: Ratios of measured to simulated rounds that are kept of each plan.
KEPT = 5

#: Plans of which ratios are kept, those measured last. A run of weeks puts thousands of plans in force.
KEPT_PLANS = 64

#: Ratios are bounded by this value and its inverse: beyond them, something else happened in the round.
STRANGE = 3.0

#: The standard deviation of the logarithm of the ratios of different plans: the uncertainty about a plan that was never
#: in force. The ratios of one plan vary by half as much over time.
SPREAD = 0.15

#: The factor of measured over simulated rounds of a plan that was never in force. Over 93 swaps on wide-area networks,
#: plans took 1.3 times the predicted time (the geometric mean; 1.2 where rates wander or are redrawn, 1.6 where links
#: fade), and swaps that promised to save less than a fifth saved nothing at all.
CHOSEN = 1.2

#: Pairs of networks that are drawn for a judgement; the two of a pair are off by as much in opposite directions. They
#: are few, since a rough simulation takes some milliseconds.
PAIRS = 4

#: The uncertainty of each link's rate: standard deviations of its logarithm below and above the believed rate.
Doubts = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class PlanMeasurement:
    """Measured rounds of a plan, with the network of their time."""

    plan: Plan
    view: View
    #: The length of a whole round in seconds.
    whole_s: float
    #: The seconds that each member computed between two rounds.
    compute_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RoundPredictor:
    """Predicts the whole rounds of plans. Immutable: what it learns makes another predictor."""

    #: The seconds that each member computes between two rounds.
    compute_s: Mapping[str, float] = field(default_factory=dict)
    #: Logarithms of measured over simulated rounds, the newest last, by plan (its shape), the last measured last.
    ratios: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    #: The part of `compute_s` for which members compute while a round is reduced.
    covered: float = 0.0

    def with_measurement(self, measured: PlanMeasurement) -> RoundPredictor:
        """Return a predictor that also knows by which factor a plan's measured rounds differ from simulated ones.

        Simulated rounds of a member alone take no time if the member computes during its rounds. They teach nothing.
        """
        simulated_s = replace(self, compute_s=measured.compute_s).simulate(measured.plan, measured.view)
        return self if simulated_s == 0 else self.with_ratio(measured.plan, measured.whole_s / simulated_s)

    def with_ratio(self, plan: Plan, ratio: float) -> RoundPredictor:
        """Return the predictor with one more ratio of a plan's measured to its simulated rounds.

        A ratio below exp(-SPREAD) is ignored. The simulation leaves out only what makes rounds longer, so a rate was
        wrong, or a clock was set back.
        """
        if ratio <= exp(-SPREAD):
            return self
        key = _key(plan)
        bounded = min(max(log(ratio), -log(STRANGE)), log(STRANGE))
        others = [(other, its) for other, its in self.ratios.items() if other != key][1 - KEPT_PLANS :]
        return replace(self, ratios={**dict(others), key: (*self.ratios.get(key, ()), bounded)[-KEPT:]})

    def is_measured(self, plan: Plan) -> bool:
        """Return whether ratios of the plan's own rounds are known."""
        return _key(plan) in self.ratios

    def simulate(self, plan: Plan, view: View, hops: int = HOPS) -> float:
        """Return the seconds of a whole round without correction, simulated with at most `hops` chunks times hops.

        With ROUGH_HOPS the seconds are fit only for comparing views with each other.

        A member begins a round once its steps are over, and after the round before and the steps that this round does
        not cover. A whole round lasts as long as the longer of the two waits.

        Raises:
            SimulationError: the plan uses an edge that the view lacks.
        """
        after_s = {member: (1 - self.covered) * seconds for member, seconds in self.compute_s.items()}
        if len(view.members) > MOST_SIMULATED:
            seconds = predict(plan, view).seconds + max(after_s.values(), default=0.0)
        else:
            coarser = coarse(plan, view.model_bytes, hops)
            seconds = simulate(coarser, view, rounds=ROUNDS, compute_s=after_s).seconds
        return max(seconds, max(self.compute_s.values(), default=0.0)) if self.covered else seconds

    def predict_s(self, plan: Plan, view: View) -> float:
        """Return the expected seconds of a whole round, never below the view's bound.

        Raises:
            SimulationError: the plan uses an edge that the view lacks.
        """
        return _limited(self.simulate(plan, view) * exp(self.correction(plan)[0]), plan, view)

    def correction(self, plan: Plan) -> tuple[float, float]:
        """Return the logarithm of the factor on the plan's simulated rounds, and its standard deviation.

        The model's usual error, the median over all plans, counts like one more ratio of the plan.
        """
        usual = max(median(map(median, self.ratios.values())), 0.0) if self.ratios else 0.0
        if own := self.ratios.get(_key(plan), ()):
            return (len(own) * median(own) + usual) / (len(own) + 1), SPREAD / 2
        return usual + log(CHOSEN), SPREAD


def _limited(seconds: float, plan: Plan, view: View) -> float:
    """Return `seconds`, or the least that the plan's rounds can take if that is longer.

    The least is the time that the busiest link needs for the plan's bytes. A plan with auxiliary routes may move load
    off that link, so its least is the view's bound, which is no longer than that time and is solved only for `seconds`
    below it. Plans that send less than the model over some edges, or skip edges in some rounds, have no known limit.
    """
    if plan.groups or plan.link_codecs:
        return seconds
    drain_s = predict(plan, view).drain_s
    if seconds >= drain_s or not plan.auxiliary:
        return max(seconds, drain_s)
    return max(seconds, bound(view).seconds) if len(view.members) <= MOST_BOUNDED else seconds


def _key(plan: Plan) -> str:
    return plan.shape().dumps()


class PlanJudge:
    """Judges plans under one view, and under networks drawn around it.

    All plans are judged under the same networks, so that a rate that is drawn high or low favours no plan. A link
    without `doubts` has the rate in the view.

    Attributes:
        predictor: Predicts the rounds under each view.
    """

    def __init__(self, view: View, doubts: Doubts, predictor: RoundPredictor) -> None:
        self._view = view
        self._doubts = doubts
        self.predictor = predictor
        self._known: dict[int, tuple[Plan, float]] = {}  # by identity: a plan's hash costs as much as some simulations

    def seconds(self, plan: Plan) -> float:
        """Return the expected seconds of a whole round.

        Raises:
            SimulationError: the plan uses an edge that the view lacks.
        """
        if id(plan) not in self._known:
            self._known[id(plan)] = plan, self.predictor.predict_s(plan, self._view)
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
        _, spread = self.predictor.correction(plan)
        rough = np.array([self.predictor.simulate(plan, view, ROUGH_HOPS) for view in (self._view, *self._views)])
        seconds: NDArray[np.float64] = rough[1:] / rough[0] * self.seconds(plan)
        return seconds, float(seconds.mean() * spread)
