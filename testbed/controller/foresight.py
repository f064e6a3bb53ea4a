"""How long whole rounds will take: simulated with delays and what members compute, corrected by how long they took.

    whole round under a plan  =  simulated(plan, view, compute)  ×  correction of the plan

The simulation leaves out what TCP loses and what hosts take. Both are the plan's own more than the moment's, so each
plan is corrected by what was measured of it, and one that was never in force as the others were.

The best of many plans is one whose links are believed to carry more than they do, more often than not. So a plan that
was never in force is also expected to keep its promise no better than the ones before it kept theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, log
from statistics import median

from testbed.plan import Plan
from testbed.planning import View, simulate
from testbed.planning.coarse import HOPS, coarse

#: Rounds that are simulated: the first begins with idle links, the second overlaps with it as all later ones do.
ROUNDS = 2

#: Chunks times hops that a rough simulation has: within 8 % of the exact one in a sixth of its time.
ROUGH_HOPS = 300

#: Ratios of measured to simulated rounds that are kept of each plan.
KEPT = 5

#: Promises that are looked back on.
PROMISES = 3

#: A ratio beyond this, or below its inverse, is of a round in which something else happened.
STRANGE = 3.0

#: How far plans' ratios lie from each other (standard deviation of the logarithm): what is not known of a plan that
#: was never in force. Those of one plan differ by half as much from time to time.
SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class Foresight:
    """What was learned so far: the seconds that each member computes between two rounds, by plan (its shape) the
    logarithms of measured over simulated rounds, and those of measured over promised rounds of plans that were adopted,
    the newest last."""

    compute_s: Mapping[str, float] = field(default_factory=dict)
    ratios: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    promises: tuple[float, ...] = ()

    def learned(self, plan: Plan, ratio: float) -> Foresight:
        """With one more ratio of a plan's measured to its simulated rounds."""
        key = _key(plan)
        return replace(self, ratios={**self.ratios, key: (*self.ratios.get(key, ()), _bounded(ratio))[-KEPT:]})

    def kept(self, ratio: float) -> Foresight:
        """With the ratio of measured to promised rounds of another plan that was adopted."""
        return replace(self, promises=(*self.promises, _bounded(ratio))[-PROMISES:])

    def simulated(self, plan: Plan, view: View) -> float:
        """Seconds of a whole round, uncorrected. SimulationError when the plan uses an edge that the view lacks."""
        return self._simulated(plan, view, HOPS)

    def roughly(self, plan: Plan, view: View) -> float:
        """The same, to be compared with other views alone."""
        return self._simulated(plan, view, ROUGH_HOPS)

    def _simulated(self, plan: Plan, view: View, hops: int) -> float:
        coarser = coarse(plan, view.model_bytes, hops)
        return simulate(coarser, view, rounds=ROUNDS, compute_s=self.compute_s).seconds

    def seconds(self, plan: Plan, view: View) -> float:
        """Seconds of a whole round, as they are to be expected. SimulationError as above."""
        return self.simulated(plan, view) * exp(self.correction(plan)[0])

    def correction(self, plan: Plan) -> tuple[float, float]:
        """The logarithm by which the plan's simulated rounds are corrected, and its standard deviation.

        What was seen of all plans counts as one more look at this one.
        """
        usual = median(map(median, self.ratios.values())) if self.ratios else 0.0
        own = self.ratios.get(_key(plan), ())
        expected = (len(own) * median(own) + usual) / (len(own) + 1) if own else usual + self._disappointment
        return expected, SPREAD / (2.0 if own else 1.0)

    @property
    def _disappointment(self) -> float:
        """By how much rounds are longer than promised: the mean with one promise that is kept, so one swap that came at
        a bad time does not say all."""
        return max(sum(self.promises) / (len(self.promises) + 1), 0.0)


def _bounded(ratio: float) -> float:
    return min(max(log(ratio), -log(STRANGE)), log(STRANGE))


def _key(plan: Plan) -> str:
    return plan.shape().dumps()
