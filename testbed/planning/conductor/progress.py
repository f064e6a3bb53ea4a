"""The worth of a step under each candidate, beside a step of flat all-reduce, learned from the run's losses [ours].

    loss after steps worth E in all     L(E) = L∞ + (L0 - L∞) (1 + E/E0)^-β
    worth of a step                     η(H) = κ γ (1 - e^-x)/x,   x = (H - 1)/h

Members that take H local steps progress less and less, because they approach the optimum of their own data: after a
horizon of h steps, 1/e of a step's progress is left (with a quadratic loss for each member the form is exact). γ is the
scheme's factor, the effect of its outer optimizer on the mean change. κ is the codec's factor. For a new task all of
these are unknown, and so are the curve's four numbers. They are found together by least squares in the logarithms,
under the priors below, in `candidate` and in the schemes' traits. Losses under several candidates separate γ, κ and h
from the curve. The covariance is that of the linear problem at the solution (Laplace).

A second estimate of h is available before a curve shows it. Merging undoes the part f of the progress that
members made by themselves in H steps. In the form above, f = 1 - (1 - e^-x)/x, about x/2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt

import numpy as np

from testbed.planning.conductor.candidate import CODECS, Candidate, SchemeCatalog
from testbed.planning.conductor.history import SeenLoss, TrainedStretch
from testbed.planning.constraints import Floats

#: The prior of the horizon in steps. Published runs lose nothing at H = 8 and some percents at H = 32 to 128.
HORIZON = (log(60), 1.0)

#: The priors of the curve: the part of the least loss that it tends to (through a logistic function), its first loss
#: over the first one seen, the steps after which it bends, and its power.
FLOOR, BEGIN, BEND, POWER = (0.0, 1.5), (0.0, 0.1), (log(20), 1.5), (log(0.5), 0.7)

#: The distance of the curve from any run's, as a part of the loss, which more losses cannot average out.
MISFIT = 0.005

#: The noise of one member's loss, as a part of it, while there are too few losses to measure it.
UNSEEN = 0.05

#: The standard deviation of the horizon's logarithm if merging alone shows it, from at least this many rounds.
UNDONE, ROUNDS = 0.5, 4
#: The least and the greatest undone part that are told apart.
LEAST_UNDONE, MOST_UNDONE = 0.01, 0.9

#: The part of the losses, the newest ones, that show how fast the loss falls, and their least number.
NEWEST, ENOUGH = 1 / 3, 8

#: The number of unknowns of the curve, which come before the others.
_CURVE = 4
#: The codecs with a κ, and its prior.
_KAPPAS = {name: prior for name, prior in CODECS.items() if prior}


class _Unknowns:
    """The unknowns in their order: four of the curve, then the horizon, the schemes' γ, the codecs' κ."""

    def __init__(self, schemes: SchemeCatalog) -> None:
        self.schemes = schemes
        #: The names of all unknowns but those of the curve.
        self.names = ("horizon", *schemes.worths(""), *_KAPPAS)

    def priors(self, optimizer: str) -> Floats:
        """Return each unknown's mean and standard deviation before the run, one unknown a row."""
        gammas = self.schemes.worths(optimizer).values()
        return np.array([FLOOR, BEGIN, BEND, POWER, HORIZON, *gammas, *_KAPPAS.values()])

    def log_worth(self, values: Floats, candidate: Candidate) -> float:
        """Return the logarithm of η, the worth of one step under a candidate."""
        return sum(float(values[its]) for its in self._factors(candidate)) + _log_left(_horizons(values, candidate))

    def slope(self, values: Floats, candidate: Candidate) -> Floats:
        """Return the derivative of a candidate's `log_worth` by the unknowns."""
        slope, x = np.zeros_like(values), _horizons(values, candidate)
        slope[self._factors(candidate)] = 1.0
        slope[_CURVE] = x / 2 - x * x / 12 if x < 1e-3 else 1 + x * exp(-x) / np.expm1(-x)
        return slope

    def worth(self, values: Floats, stretches: Sequence[TrainedStretch], steps: Floats) -> Floats:
        """Return the worth E of all steps after each number of `steps`."""
        total = np.zeros_like(steps)
        for stretch in stretches:
            inside = np.clip(steps, stretch.began, stretch.ended) - stretch.began
            total += inside * exp(self.log_worth(values, stretch.candidate))
        return total

    def _factors(self, candidate: Candidate) -> list[int]:
        """Return the unknowns that a candidate's worth is a multiple of: its scheme's γ and its codec's κ."""
        its = self.schemes.traits.get(candidate.scheme)
        names = [candidate.scheme] if its and its.codec else [candidate.scheme, candidate.codec]
        return [_CURVE + self.names.index(name) for name in names if name in self.names]


@dataclass(frozen=True)
class StepWorth:
    """The worth of a step under each candidate, as `learn` found it."""

    schemes: SchemeCatalog
    #: The unknowns (see `_Unknowns`), and their covariance.
    values: Floats
    covariance: Floats
    #: The first and the least loss seen.
    scale: tuple[float, float]
    #: Steps so far under each candidate.
    taken: Mapping[Candidate, int]
    #: The number of losses seen.
    losses: int
    #: The most by which the loss may fall while the steps' worth grows e-fold, by the newest losses.
    fall: float

    def log_worth(self, candidate: Candidate) -> float:
        """Return the logarithm of the worth of a step."""
        return self._unknowns.log_worth(self.values, candidate)

    def spread(self, candidate: Candidate, beside: Candidate | None = None) -> float:
        """Return the standard deviation of the difference of two candidates' `log_worth`.

        Args:
            candidate: One of them.
            beside: The other; None for flat all-reduce.
        """
        other = self._unknowns.slope(self.values, beside or self.schemes.flat)
        return self._deviation(self._unknowns.slope(self.values, candidate) - other)

    def loss(self, worth: float) -> float:
        """Return the loss at parameters that all members hold, after steps worth `worth`."""
        return float(_curve(self.values, np.array([worth]), self.scale)[0])

    @property
    def worth(self) -> float:
        """The worth E of all steps so far."""
        return sum(steps * exp(self.log_worth(its)) for its, steps in self.taken.items())

    def spent(self, candidate: Candidate, steps: int) -> tuple[float, float]:
        """Return E after `steps` more steps under a candidate, and its standard deviation by past and future steps."""
        whole = {**self.taken, candidate: self.taken.get(candidate, 0) + steps}
        parts = {its: count * exp(self.log_worth(its)) for its, count in whole.items()}
        slopes = (part * self._unknowns.slope(self.values, its) for its, part in parts.items())
        slope = sum(slopes, np.zeros_like(self.values))
        return sum(parts.values()), self._deviation(slope)

    def above(self, worth: float, of: float) -> float:
        """Return the excess of the loss after steps worth `worth` over the loss after steps worth `of`, which is more.

        The excess is the greater of the curve's and that of the recent fall by the logarithm of steps. A logarithm
        flattens less than any power law, and a loss that leaves a plateau (a transformer's, once it attends to earlier
        tokens) follows no power law at all.
        """
        if worth >= of or of <= 0:
            return 0.0
        return max(self.loss(worth) - self.loss(of), self.fall * log(of / max(worth, of * 1e-3)), 0.0)

    @cached_property
    def _unknowns(self) -> _Unknowns:
        return _Unknowns(self.schemes)

    def _deviation(self, slope: Floats) -> float:
        variance = float(slope @ self.covariance @ slope)
        return sqrt(max(variance, 0.0))

    def to_json(self) -> dict[str, float]:
        """Return plain values: the horizon, the factors of schemes and codecs with their spreads, and the loss now."""
        found = {}
        for number, name in enumerate(self._unknowns.names, _CURVE):
            found[name] = exp(self.values[number])
            found[f"{name}_spread"] = float(self.covariance[number, number]) ** 0.5
        return {**found, "loss": self.loss(self.worth), "losses": float(self.losses)}


def learn(stretches: Sequence[TrainedStretch], schemes: SchemeCatalog, optimizer: str = "") -> StepWorth:
    """Learn the worth of steps from a run's training so far. Without stretches, return the priors.

    Args:
        stretches: The training so far.
        schemes: The schemes that may be chosen.
        optimizer: The optimizer that members step by; empty if it normalizes no gradients.
    """
    unknowns = _Unknowns(schemes)
    losses = [loss for stretch in stretches for loss in stretch.losses]
    scale = (losses[0].value, min(loss.value for loss in losses)) if losses else (1.0, 1.0)
    priors = unknowns.priors(optimizer)
    steps = np.array([loss.step for loss in losses])
    seen = np.array([loss.value for loss in losses])
    off = _noise(stretches)
    hints = list(_hints(stretches, schemes))

    def residuals(values: Floats) -> Floats:
        own = (_curve(values, unknowns.worth(values, stretches, steps), scale) - seen) / off if losses else np.empty(0)
        hinted = [(values[_CURVE] - about) / sure for about, sure in hints]
        return np.concatenate([own, hinted, (values - priors[:, 0]) / priors[:, 1]])

    # Imported here: it is a sixth of a controller's time to load, and only the conductor needs it.
    from scipy.optimize import least_squares

    found = least_squares(residuals, priors[:, 0], max_nfev=60)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    taken: dict[Candidate, int] = {}
    for stretch in stretches:
        taken[stretch.candidate] = taken.get(stretch.candidate, 0) + stretch.ended - stretch.began
    fall = _fall(unknowns.worth(found.x, stretches, steps), seen, off) if losses else 0.0
    return StepWorth(schemes, found.x, covariance, scale, taken, len(losses), fall)


def _curve(values: Floats, worth: Floats, scale: tuple[float, float]) -> Floats:
    floor, begin, bend, power = values[:_CURVE]
    least = scale[1] / (1 + exp(-floor))
    first = max(scale[0] * exp(begin) - least, 1e-9)
    return least + first * (1 + np.maximum(worth, 0.0) / exp(bend)) ** -exp(min(power, 3.0))


def _horizons(values: Floats, candidate: Candidate) -> float:
    """Return x = (H - 1)/h of the module's formula, for the candidate's H local steps and the horizon h."""
    return (candidate.steps - 1) / exp(min(max(values[_CURVE], -5.0), 20.0))


def _log_left(x: float) -> float:
    """Return the logarithm of (1 - e^-x)/x."""
    return -x / 2 + x * x / 24 if x < 1e-3 else log(-np.expm1(-x) / x)


def _fall(worths: Floats, losses: Floats, deviations: Floats) -> float:
    """Return the most by which the loss may fall while the steps' worth grows e-fold: a line's fall and its deviation.

    Args:
        worths: The worth of the steps before each loss.
        losses: The losses, in order.
        deviations: The standard deviation of each loss.
    """
    newest = slice(-max(ENOUGH, round(len(losses) * NEWEST)), None)
    at, values, weights = worths[newest], losses[newest], deviations[newest] ** -2
    middle, mean = (float(np.average(of, weights=weights)) for of in (at, values))
    spread = float(weights @ (at - middle) ** 2)
    if not spread:
        return 0.0
    slope = float(weights @ ((at - middle) * (values - mean))) / spread
    return float(max(spread**-0.5 - slope, 0.0) * middle)


def _noise(stretches: Sequence[TrainedStretch]) -> Floats:
    """Return each loss's standard deviation: the scatter around lines through neighbouring losses, and MISFIT."""
    apart, every = [], [loss for stretch in stretches for loss in stretch.losses]
    for stretch in stretches:
        for one, middle, other in zip(stretch.losses, stretch.losses[1:], stretch.losses[2:], strict=False):
            apart.append(_off_line(one, middle, other))
    most = max((loss.value for loss in every), default=1.0)
    single = float(np.median(np.abs(apart))) / 0.6745 if len(apart) > 3 else UNSEEN * most
    return np.array([(single**2 / loss.weight + (MISFIT * loss.value) ** 2) ** 0.5 for loss in every])


def _off_line(one: SeenLoss, middle: SeenLoss, other: SeenLoss) -> float:
    """Return how far the middle loss is above the line (over steps) through its neighbours.

    It is scaled by the losses' weights, so that it scatters like the loss of one member.
    """
    part = (middle.step - one.step) / (other.step - one.step) if other.step > one.step else 0.5
    off = middle.value - one.value - (other.value - one.value) * part
    variance = 1 / middle.weight + (1 - part) ** 2 / one.weight + part**2 / other.weight
    return float(off / variance**0.5)


def _hints(stretches: Sequence[TrainedStretch], schemes: SchemeCatalog) -> Iterator[tuple[float, float]]:
    """Yield the logarithms of horizons that merging shows, with their standard deviations."""
    for stretch in stretches:
        its = schemes.traits.get(stretch.candidate.scheme)
        if its and its.plain_mean and (undone := stretch.undone) is not None:
            part = min(max(undone, LEAST_UNDONE), MOST_UNDONE)
            sure = UNDONE * max(ROUNDS / stretch.judged, 1.0) ** 0.5
            yield log(max(stretch.candidate.steps - 1, 1) / (2 * part)), sure
