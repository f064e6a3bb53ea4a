"""What a step is worth under each candidate, beside one of flat all-reduce: learned from the loss curve of the run.

    loss after steps that were worth E in all     L(E) = L∞ + (L0 - L∞) (1 + E/E0)^-β
    worth of a step of local SGD                  η(H) = γ (1 - e^-x)/x,   x = (H - 1)/h

Members that take H steps of their own come less and less further as they run into what their own data has to offer:
after a horizon of h steps a part of 1/e of the progress is left (a quadratic for each member has exactly that form). γ
is the scheme's own: what its outer optimizer makes of the mean change. Both are unknown of a task that nobody knows. So
are the curve's four numbers, and all of them are found together, by least squares in the logarithms under the priors
below: what was measured under several candidates parts γ and h from the curve. The covariance is that of the linear
problem at the solution (Laplace).

A second look at h, before a curve shows it: of what members learned by themselves in H steps, merging undid the part f.
In the form above that is f = 1 - (1 - e^-x)/x, about x/2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from testbed.planning.conductor.candidate import FIRST, Candidate
from testbed.planning.conductor.history import SeenLoss, TrainedStretch

Vector = NDArray[np.float64]

#: What is believed of any task: the horizon in steps, and what an outer optimizer makes of a mean change, as logarithms
#: with their standard deviations. Published runs lose nothing at H = 8 and some percents at H = 32 to 128. A tenth more
#: loss, as sparseloco's here, is some third of the steps (docs/benchmarks.md).
HORIZON = (log(60), 1.0)
OUTER = {"local_sgd": (0.0, 0.1), "diloco": (0.0, 0.3), "sparseloco": (log(0.7), 0.3), "muloco": (0.0, 0.3)}

#: What a step is worth less through a codec, as logarithms: what it leaves out comes a round later.
CODEC = {"fp32": (0.0, 0.0), "fp16": (-0.001, 0.002), "int8": (-0.005, 0.01)}
#: Of a scheme that is made for a codec its own factor has that in it.
CODEC |= {"sparse": (0.0, 0.0), "bins2": (0.0, 0.0)}

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

#: The unknowns, in order.
_CURVE = 4
_NAMES = ("horizon", *OUTER)


@dataclass(frozen=True)
class StepWorth:
    """What was learned: `values` of the unknowns, and their `covariance`. `worth` is E of all steps so far."""

    values: Vector
    covariance: Vector
    scale: tuple[float, float]
    worth: float
    losses: int

    def log_worth(self, candidate: Candidate) -> float:
        """The logarithm of what a step is worth."""
        return _log_worth(self.values, candidate)

    def spread(self, candidate: Candidate, beside: Candidate = FIRST) -> float:
        """The standard deviation of the difference of two candidates' logarithms."""
        slope = _slope(self.values, candidate) - _slope(self.values, beside)
        variance = max(float(slope @ self.covariance @ slope), 0.0)
        if candidate.codec != beside.codec:
            variance += CODEC[candidate.codec][1] ** 2 + CODEC[beside.codec][1] ** 2
        return float(variance**0.5)

    def loss(self, worth: float) -> float:
        """That at parameters all hold after steps worth so much."""
        return float(_curve(self.values, np.array([worth]), self.scale)[0])

    @property
    def horizon(self) -> float:
        """In steps."""
        return exp(self.values[_CURVE])

    def to_json(self) -> dict[str, float]:
        """In plain values: the horizon, the outer factors, each with its spread, and the loss now."""
        found = {}
        for number, name in enumerate(_NAMES, _CURVE):
            found[name] = exp(self.values[number])
            found[f"{name}_spread"] = float(self.covariance[number, number]) ** 0.5
        return {**found, "loss": self.loss(self.worth), "losses": float(self.losses)}


def learn(stretches: Sequence[TrainedStretch]) -> StepWorth:
    """What so much of training teaches; of none, what is believed of any task."""
    losses = [loss for stretch in stretches for loss in stretch.losses]
    scale = (losses[0].value, min(loss.value for loss in losses)) if losses else (1.0, 1.0)
    priors = np.array([FLOOR, BEGIN, BEND, POWER, HORIZON, *OUTER.values()])
    steps = np.array([loss.step for loss in losses])
    seen = np.array([loss.value for loss in losses])
    off = _noise(stretches)
    hints = list(_hints(stretches))

    def residuals(values: Vector) -> Vector:
        own = (_curve(values, _worth(values, stretches, steps), scale) - seen) / off if losses else np.empty(0)
        hinted = [(values[_CURVE] - about) / sure for about, sure in hints]
        return np.concatenate([own, hinted, (values - priors[:, 0]) / priors[:, 1]])

    found = least_squares(residuals, priors[:, 0], max_nfev=60)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    ended = np.array([float(stretches[-1].ended)]) if stretches else np.zeros(1)
    worth = float(_worth(found.x, stretches, ended)[0])
    return StepWorth(found.x, covariance, scale, worth, len(losses))


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
    codec = CODEC[candidate.codec][0]
    if candidate.scheme == FIRST.scheme:
        return codec
    horizon = exp(min(max(values[_CURVE], -5.0), 20.0))
    outer = float(values[_CURVE + _NAMES.index(candidate.scheme)])
    return codec + outer + _log_left((candidate.steps - 1) / horizon)


def _log_left(x: float) -> float:
    """The logarithm of (1 - e^-x)/x."""
    return -x / 2 + x * x / 24 if x < 1e-3 else log(-np.expm1(-x) / x)


def _slope(values: Vector, candidate: Candidate) -> Vector:
    """The derivative of a candidate's logarithm by the unknowns."""
    step, slope = 1e-4, np.zeros_like(values)
    for number in range(_CURVE, len(values)):
        moved = values.copy()
        moved[number] += step
        slope[number] = (_log_worth(moved, candidate) - _log_worth(values, candidate)) / step
    return slope


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
