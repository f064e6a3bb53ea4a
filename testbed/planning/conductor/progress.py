"""What a step is worth under each candidate, beside one of flat all-reduce: learned from the loss curve of the run.

    loss after steps that were worth E in all     L(E) = L∞ + (L0 - L∞) (1 + E/E0)^-β
    worth of a step of local SGD                  η(H) = κ γ (1 - e^-x)/x,   x = (H - 1)/h

Members that take H steps of their own come less and less further as they run into what their own data has to offer:
after a horizon of h steps a part of 1/e of the progress is left (a quadratic for each member has exactly that form). γ
is the scheme's own: what its outer optimizer makes of the mean change. κ is the codec's. All are unknown of a task that
nobody knows. So are the curve's four numbers, and all of them are found together, by least squares in the logarithms
under the priors below: what was measured under several candidates parts γ, κ and h from the curve. The covariance is
that of the linear problem at the solution (Laplace).

A second look at h, before a curve shows it: of what members learned by themselves in H steps, merging undid the part f.
In the form above that is f = 1 - (1 - e^-x)/x, about x/2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from testbed.planning.conductor.candidate import FIRST, Candidate
from testbed.planning.conductor.history import SeenLoss, TrainedStretch

Vector = NDArray[np.float64]

#: What is believed of any task, as logarithms with their standard deviations: the horizon in steps. Published runs lose
#: nothing at H = 8 and some percents at H = 32 to 128.
HORIZON = (log(60), 1.0)

#: γ. A tenth more loss, as sparseloco's here, is some third of the steps (docs/benchmarks.md).
OUTER = {"local_sgd": (0.0, 0.1), "diloco": (0.0, 0.3), "sparseloco": (log(0.7), 0.3), "muloco": (0.0, 0.3)}

#: γ where members step by an optimizer that divides by the size of its own gradients. Of a value with signal s and
#: noise σ each of n members steps by s/√(s² + σ²), and all-reduce by s/√(s² + σ²/n): the mean of members' steps is from
#: 1/√n to 1 of all-reduce's, however few the steps of a round: of nine members 0.33 to 1, in the middle 0.6. Eight
#: members of a small GPT needed 1.6 times the steps with rounds of 2, and 2.1 times with rounds of 16.
NORMALIZED = {"local_sgd": (log(0.6), 0.3), "diloco": (log(0.6), 0.5)}
NORMALIZING = ("adam", "adamw", "muon")

#: κ. A codec leaves the part δ of the squares to a later round (of normally distributed values fp16 1e-7, int8 5e-5,
#: bins4 0.012, bins2 0.16): error feedback adds what was left out and takes away what is, which is noise beside the
#: gradient's own, in each encoding on a value's way. Eight members of a small GPT needed no more steps with int8, 1.09
#: times as many with bins4, and 1.5 times with bins2, at any time of the run.
CODEC = {"fp16": (0.0, 0.001), "int8": (-0.002, 0.005), "bins4": (-0.08, 0.04), "bins2": (-0.4, 0.2)}
#: Of a scheme that is made for a codec γ has that in it.
OWN = ("sparseloco", "muloco")

#: Of the curve: the part of the least loss that it tends to (by a logistic function), its first loss against the first
#: that was seen, the steps after which it bends, and its power.
FLOOR, BEGIN, BEND, POWER = (0.0, 1.5), (0.0, 0.1), (log(20), 1.5), (log(0.5), 0.7)

#: How far the curve is from any run's, as a part of the loss: what more losses can't average out.
MISFIT = 0.005

#: The noise of one member's loss, as a part of it, before there are losses to tell it by.
UNSEEN = 0.05

#: How sure a horizon is that merging alone tells (standard deviation of its logarithm), of this many rounds or more.
UNDONE, ROUNDS = 0.5, 4
#: Parts that are told apart.
LEAST_UNDONE, MOST_UNDONE = 0.01, 0.9

#: Of the losses so far those of the newest third say how fast it falls, and so many at least.
NEWEST, ENOUGH = 1 / 3, 8

#: The unknowns, in order: after the curve's.
_CURVE = 4
_NAMES = ("horizon", *OUTER, *CODEC)


@dataclass(frozen=True)
class StepWorth:
    """What was learned: `values` of the unknowns, and their `covariance`. `taken` are the steps so far under each
    candidate, `fall` is by how much the loss lately fell for e times as many steps, at most."""

    values: Vector
    covariance: Vector
    scale: tuple[float, float]
    taken: Mapping[Candidate, int]
    losses: int
    fall: float

    def log_worth(self, candidate: Candidate) -> float:
        """The logarithm of what a step is worth."""
        return _log_worth(self.values, candidate)

    def spread(self, candidate: Candidate, beside: Candidate = FIRST) -> float:
        """The standard deviation of the difference of two candidates' logarithms."""
        return self._deviation(_slope(self.values, candidate) - _slope(self.values, beside))

    def loss(self, worth: float) -> float:
        """That at parameters all hold after steps worth so much."""
        return float(_curve(self.values, np.array([worth]), self.scale)[0])

    @property
    def worth(self) -> float:
        """E of all steps so far."""
        return sum(steps * exp(self.log_worth(its)) for its, steps in self.taken.items())

    def spent(self, candidate: Candidate, steps: int) -> tuple[float, float]:
        """E after so many more steps under a candidate, and its standard deviation: of what was taken as of what is to
        come."""
        whole = {**self.taken, candidate: self.taken.get(candidate, 0) + steps}
        parts = {its: count * exp(self.log_worth(its)) for its, count in whole.items()}
        slope = sum((part * _slope(self.values, its) for its, part in parts.items()), np.zeros_like(self.values))
        return sum(parts.values()), self._deviation(slope)

    def above(self, worth: float, of: float) -> float:
        """By how much more the loss after steps worth so much is than after those worth `of`, which is more.

        What the curve says, or what it lately fell by the logarithm of steps, whichever is more: of all power laws a
        logarithm flattens the least, and a loss that stood on a plateau and falls anew (a transformer's, once it begins
        to look back) is no power law at all.
        """
        if worth >= of or of <= 0:
            return 0.0
        return max(self.loss(worth) - self.loss(of), self.fall * log(of / max(worth, of * 1e-3)), 0.0)

    def _deviation(self, slope: Vector) -> float:
        variance = float(slope @ self.covariance @ slope)
        return sqrt(max(variance, 0.0))

    @property
    def horizon(self) -> float:
        """In steps."""
        return exp(self.values[_CURVE])

    def to_json(self) -> dict[str, float]:
        """In plain values: the horizon, the factors of schemes and codecs, each with its spread, and the loss now."""
        found = {}
        for number, name in enumerate(_NAMES, _CURVE):
            found[name] = exp(self.values[number])
            found[f"{name}_spread"] = float(self.covariance[number, number]) ** 0.5
        return {**found, "loss": self.loss(self.worth), "losses": float(self.losses)}


def learn(stretches: Sequence[TrainedStretch], optimizer: str = "") -> StepWorth:
    """What so much of training teaches, of members that step by this optimizer; of none, what is believed of any
    task."""
    losses = [loss for stretch in stretches for loss in stretch.losses]
    scale = (losses[0].value, min(loss.value for loss in losses)) if losses else (1.0, 1.0)
    outer = OUTER | NORMALIZED if optimizer in NORMALIZING else OUTER
    priors = np.array([FLOOR, BEGIN, BEND, POWER, HORIZON, *outer.values(), *CODEC.values()])
    steps = np.array([loss.step for loss in losses])
    seen = np.array([loss.value for loss in losses])
    off = _noise(stretches)
    hints = list(_hints(stretches))

    def residuals(values: Vector) -> Vector:
        own = (_curve(values, _worth(values, stretches, steps), scale) - seen) / off if losses else np.empty(0)
        hinted = [(values[_CURVE] - about) / sure for about, sure in hints]
        return np.concatenate([own, hinted, (values - priors[:, 0]) / priors[:, 1]])

    # A sixth of what a controller takes to load, and none but the conductor's needs it.
    from scipy.optimize import least_squares

    found = least_squares(residuals, priors[:, 0], max_nfev=60)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    taken: dict[Candidate, int] = {}
    for stretch in stretches:
        taken[stretch.candidate] = taken.get(stretch.candidate, 0) + stretch.ended - stretch.began
    fall = _fall(_worth(found.x, stretches, steps), seen, off) if losses else 0.0
    return StepWorth(found.x, covariance, scale, taken, len(losses), fall)


def _curve(values: Vector, worth: Vector, scale: tuple[float, float]) -> Vector:
    floor, begin, bend, power = values[:_CURVE]
    least = scale[1] / (1 + exp(-floor))
    first = max(scale[0] * exp(begin) - least, 1e-9)
    return least + first * (1 + np.maximum(worth, 0.0) / exp(bend)) ** -exp(min(power, 3.0))


def _worth(values: Vector, stretches: Sequence[TrainedStretch], steps: Vector) -> Vector:
    """E after so many steps."""
    total = np.zeros_like(steps)
    for stretch in stretches:
        inside = np.clip(steps, stretch.began, stretch.ended) - stretch.began
        total += inside * exp(_log_worth(values, stretch.candidate))
    return total


def _log_worth(values: Vector, candidate: Candidate) -> float:
    return sum(float(values[its]) for its in _factors(candidate)) + _log_left(_alone(values, candidate))


def _factors(candidate: Candidate) -> list[int]:
    """The unknowns that its worth is a multiple of: its scheme's and its codec's, of those that lose something."""
    names = [candidate.scheme] if candidate.scheme in OWN else [candidate.scheme, candidate.codec]
    return [_CURVE + _NAMES.index(name) for name in names if name in _NAMES]


def _alone(values: Vector, candidate: Candidate) -> float:
    """x"""
    return (candidate.steps - 1) / exp(min(max(values[_CURVE], -5.0), 20.0))


def _log_left(x: float) -> float:
    """The logarithm of (1 - e^-x)/x."""
    return -x / 2 + x * x / 24 if x < 1e-3 else log(-np.expm1(-x) / x)


def _slope(values: Vector, candidate: Candidate) -> Vector:
    """The derivative of a candidate's logarithm by the unknowns."""
    slope, x = np.zeros_like(values), _alone(values, candidate)
    slope[_factors(candidate)] = 1.0
    slope[_CURVE] = x / 2 - x * x / 12 if x < 1e-3 else 1 + x * exp(-x) / np.expm1(-x)
    return slope


def _fall(worth: Vector, seen: Vector, off: Vector) -> float:
    """By how much the newest losses fell for e times as many steps, and its standard deviation more: by a line through
    them."""
    newest = slice(-max(ENOUGH, round(len(seen) * NEWEST)), None)
    at, values, weights = worth[newest], seen[newest], off[newest] ** -2
    middle, mean = (float(np.average(of, weights=weights)) for of in (at, values))
    spread = float(weights @ (at - middle) ** 2)
    if not spread:
        return 0.0
    slope = float(weights @ ((at - middle) * (values - mean))) / spread
    return float(max(spread**-0.5 - slope, 0.0) * middle)


def _noise(stretches: Sequence[TrainedStretch]) -> Vector:
    """How far each loss may be off: by what neighbours differ from the line through those beside them, and MISFIT."""
    apart, every = [], [loss for stretch in stretches for loss in stretch.losses]
    for stretch in stretches:
        for one, middle, other in zip(stretch.losses, stretch.losses[1:], stretch.losses[2:], strict=False):
            apart.append(_off_line(one, middle, other))
    most = max((loss.value for loss in every), default=1.0)
    single = float(np.median(np.abs(apart))) / 0.6745 if len(apart) > 3 else UNSEEN * most
    return np.array([(single**2 / loss.weight + (MISFIT * loss.value) ** 2) ** 0.5 for loss in every])


def _off_line(one: SeenLoss, middle: SeenLoss, other: SeenLoss) -> float:
    """How far the middle is off the line through its neighbours, as it would be for losses of one member each."""
    part = (middle.step - one.step) / (other.step - one.step) if other.step > one.step else 0.5
    off = middle.value - one.value - (other.value - one.value) * part
    variance = 1 / middle.weight + (1 - part) ** 2 / one.weight + part**2 / other.weight
    return float(off / variance**0.5)


def _hints(stretches: Sequence[TrainedStretch]) -> Iterator[tuple[float, float]]:
    """Horizons' logarithms that merging tells of, and how sure they are. Local SGD alone: an outer optimizer moves on
    by more than the mean change."""
    for stretch in stretches:
        if stretch.candidate.scheme == "local_sgd" and (undone := stretch.undone) is not None:
            part = min(max(undone, LEAST_UNDONE), MOST_UNDONE)
            sure = UNDONE * max(ROUNDS / stretch.judged, 1.0) ** 0.5
            yield log(max(stretch.candidate.steps - 1, 1) / (2 * part)), sure
