"""A quantity's growth: its slope, with the error of the slope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

#: Samples are averaged over this long: neighbours are nearly equal, and counting them as independent would make errors
#: too small.
BLOCK_S = 60.0


@dataclass(frozen=True, slots=True)
class Slope:
    """A slope in units an hour, with half the width of its 95 % interval; `mean` is the level."""

    an_hour: float
    error: float
    mean: float

    @property
    def differs(self) -> bool:
        """True if the slope differs from 0 beyond its error."""
        return abs(self.an_hour) > self.error


def slope(lives: Sequence[Sequence[tuple[float, float]]]) -> Slope | None:
    """Return the common slope of several lives of a process, each (seconds, value) pairs with a level of its own.

    Least squares over means of a minute, with the errors' correlation from one minute to the next taken off their
    number: n (1 − ρ) / (1 + ρ) are independent. None where there are fewer than three degrees of freedom.
    """
    blocks = [_blocks(life) for life in lives]
    blocks = [block for block in blocks if len(block) >= 2]
    hours = [block[:, 0] / 3600 - (block[:, 0] / 3600).mean() for block in blocks]
    values = [block[:, 1] - block[:, 1].mean() for block in blocks]
    if not blocks:
        return None
    x, y = np.concatenate(hours), np.concatenate(values)
    free = len(x) - len(blocks) - 1
    if free < 3:
        return None
    b = float(x @ y / (x @ x))
    left = [own - b * at for at, own in zip(hours, values, strict=True)]
    total = sum(float(one @ one) for one in left)
    together = sum(float(one[1:] @ one[:-1]) for one in left)
    rho = min(max(together / total, 0.0), 0.9) if total > 0 else 0.0
    independent = max(free * (1 - rho) / (1 + rho), 2.0)
    error = float(stats.t.ppf(0.975, independent) * np.sqrt(total / independent / (x @ x)))
    mean = float(np.mean(np.concatenate([block[:, 1] for block in blocks])))
    return Slope(b, error, mean)


def _blocks(life: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return (seconds, value) means, one a minute."""
    by_minute: dict[int, list[tuple[float, float]]] = {}
    for at_s, value in life:
        by_minute.setdefault(int(at_s // BLOCK_S), []).append((at_s, value))
    return np.array([np.mean(own, axis=0) for _, own in sorted(by_minute.items())]).reshape(-1, 2)
