"""The rate that a link had in a past stretch of time, known better afterwards than during it.

    samples   o  o o      o   |  o    o  |    o o  o
              `--- before ----' `-inside-' `--- after ---

An estimate of now can only look back. Of a stretch that is over, samples from both of its sides are known: they say
what the link carried in between even where nothing filled it then, and whether its rate moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from testbed.telemetry.estimate import LEAST
from testbed.telemetry.sample import Sample

#: The samples that are kept of a link: those of half a minute where links are full in each round.
KEPT = 400


@dataclass(frozen=True, slots=True)
class PastRate:
    """The median rate of a link in a stretch of time, and the lowest and highest median of its parts.

    It is `known` by LEAST samples within the stretch, or else by samples on both of its sides.
    """

    rate_bps: float
    low_bps: float
    high_bps: float
    known: bool


class RateHistory:
    """The samples of one link that filled it, in order."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    def add(self, samples: Iterable[Sample]) -> None:
        """Take the samples among these that filled the link."""
        full = [sample for sample in samples if sample.full]
        if full:
            merged = sorted([*self._samples, *full], key=lambda sample: sample.began_s)
            self._samples = deque(merged, maxlen=KEPT)

    def between(self, began_s: float, ended_s: float) -> PastRate | None:
        """Return the rate between two moments (Unix time); None before anything filled the link."""
        before = [sample for sample in self._samples if sample.ended_s <= began_s][-LEAST:]
        inside = [sample for sample in self._samples if sample.ended_s > began_s and sample.began_s < ended_s]
        after = [sample for sample in self._samples if sample.began_s >= ended_s][:LEAST]
        parts = [inside[i : i + LEAST] for i in range(0, len(inside), LEAST)]
        if len(parts) < 2:
            parts = [part for part in (before, inside, after) if part]
        if not parts:
            return None
        enough = len(inside) >= LEAST
        middles = [_middle(part) for part in parts]
        rate_bps = _middle(inside if enough else [*before, *inside, *after])
        return PastRate(rate_bps, min(middles), max(middles), enough or bool(before and after))


def _middle(samples: Sequence[Sample]) -> float:
    return median(sample.rate_bps for sample in samples)
