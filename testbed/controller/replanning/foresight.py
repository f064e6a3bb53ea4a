"""How long whole rounds will take: simulated with delays and what members compute, corrected by how long they took.

    whole round under a plan  =  simulated(plan, view, compute)  ×  correction of the plan

The simulation leaves out what TCP loses and what hosts take. Both are the plan's own more than the moment's, so each
plan is corrected by what was measured of it. A lesson is a stretch of rounds, and the network as it was meanwhile,
known better afterwards: what a view of now has wrong is no merit and no fault of a plan.

A plan that was never in force is corrected by the model's own error (what starts, what hosts take), which only makes
rounds longer, and by what it owes to its being chosen: the plan that looks best is the best for the errors in what is
known of links, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, log
from statistics import median

from testbed.plan import Plan
from testbed.planning import View, predict, simulate
from testbed.planning.bound import MOST_BOUNDED, bound
from testbed.planning.simulate import HOPS, coarse

#: Rounds that are simulated: the first begins with idle links, the second overlaps with it as all later ones do.
ROUNDS = 2

#: Of more members the fluid prediction must do: a simulation looks at all connections whenever one ends.
MOST_SIMULATED = 64

#: Chunks times hops that a rough simulation has: within 8 % of the exact one in a sixth of its time.
ROUGH_HOPS = 300

#: Ratios of measured to simulated rounds that are kept of each plan.
KEPT = 5

#: A ratio beyond this, or below its inverse, is of a round in which something else happened.
STRANGE = 3.0

#: How far plans' ratios lie from each other (standard deviation of the logarithm): what is not known of a plan that
#: was never in force. Those of one plan differ by half as much from time to time.
SPREAD = 0.15

#: Rounds under a plan that was never in force take so many times what is simulated. Of 93 swaps on wide-area networks
#: the plan took 1.3 times what was foreseen of it (the geometric mean; 1.2 where rates wander or are redrawn, 1.6 where
#: links fade), and those that promised less than a fifth brought nothing at all.
CHOSEN = 1.2


@dataclass(frozen=True, slots=True)
class Lesson:
    """Rounds of `plan` that took `whole_s` each, in the network that `view` has, between which members computed."""

    plan: Plan
    view: View
    whole_s: float
    compute_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Foresight:
    """The seconds that each member computes between two rounds, and what was learned so far: by plan (its shape) the
    logarithms of measured over simulated rounds, the newest last."""

    compute_s: Mapping[str, float] = field(default_factory=dict)
    ratios: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def taught(self, lesson: Lesson) -> Foresight:
        """Return the foresight with what a lesson teaches of its plan."""
        simulated_s = replace(self, compute_s=lesson.compute_s).simulated(lesson.plan, lesson.view)
        return self.learned(lesson.plan, lesson.whole_s / simulated_s)

    def learned(self, plan: Plan, ratio: float) -> Foresight:
        """Return the foresight with one more ratio of a plan's measured to its simulated rounds.

        Rounds that were shorter than simulated by more than SPREAD teach nothing of the plan: what the simulation
        leaves out makes rounds longer, so a rate was wrong. Nor do those in which a clock was set back.
        """
        if ratio <= exp(-SPREAD):
            return self
        key = _key(plan)
        bounded = min(max(log(ratio), -log(STRANGE)), log(STRANGE))
        return replace(self, ratios={**self.ratios, key: (*self.ratios.get(key, ()), bounded)[-KEPT:]})

    def simulated(self, plan: Plan, view: View) -> float:
        """Seconds of a whole round, uncorrected. SimulationError when the plan uses an edge that the view lacks."""
        return self._simulated(plan, view, HOPS)

    def roughly(self, plan: Plan, view: View) -> float:
        """The same, to be compared with other views alone."""
        return self._simulated(plan, view, ROUGH_HOPS)

    def _simulated(self, plan: Plan, view: View, hops: int) -> float:
        if len(view.members) > MOST_SIMULATED:
            return predict(plan, view).seconds + max(self.compute_s.values(), default=0.0)
        coarser = coarse(plan, view.model_bytes, hops)
        return simulate(coarser, view, rounds=ROUNDS, compute_s=self.compute_s).seconds

    def seconds(self, plan: Plan, view: View) -> float:
        """Seconds of a whole round to be expected, never below the view's bound. SimulationError as above."""
        return max(self.simulated(plan, view) * exp(self.correction(plan)[0]), least_s(plan, view))

    def correction(self, plan: Plan) -> tuple[float, float]:
        """The logarithm by which the plan's simulated rounds are corrected, and its standard deviation.

        The model's own error counts as one more look at a plan.
        """
        usual = max(median(map(median, self.ratios.values())), 0.0) if self.ratios else 0.0
        if own := self.ratios.get(_key(plan), ()):
            return (len(own) * median(own) + usual) / (len(own) + 1), SPREAD / 2
        return usual + log(CHOSEN), SPREAD


def least_s(plan: Plan, view: View) -> float:
    """Return seconds below which no round of a plan can be under a view, and no bound of the view is above.

    The busiest link needs that long for what the plan puts on it. A plan with auxiliary routes may move load off that
    link, and is held to the bound itself. Of plans that send less than the model over some edges, or not in each round,
    nothing is known: 0.
    """
    if plan.groups or plan.link_codecs:
        return 0.0
    if not plan.auxiliary:
        return predict(plan, view).drain_s
    return bound(view).seconds if len(view.members) <= MOST_BOUNDED else 0.0


def _key(plan: Plan) -> str:
    return plan.shape().dumps()
