"""The estimate of a capacity, from what trains over it carried.

Not every train filled the link: a congestion control that finds its way, or acknowledgements that queue on the way
back, make some slower than the link. None is faster, but for bursts of acknowledgements. So the estimate is an upper
quantile over the last few rounds; what it was before a change is dropped, and with it what was carried before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Of the trains of the last ROUNDS. With 0.75 and 0.8 the median error was 3.5 and 4.1 %, but links that trains seldom
#: filled were 24 and 20 % off (90th percentile).
QUANTILE = 0.8
ROUNDS = 8

#: A round this many times above or below the estimate is a change when the next one is on the same side ...
CHANGE = 1.2
#: ... and at once when it is this far off. NetStorm's links, 3 to 6 s after all were drawn anew, were 8 and 10 % off at
#: the median in two runs; with 1.3 and 1.6 it was 14 and 17.
JUMP = 1.4

#: The estimate that is given out moves when it is off by this part: a plan is not made anew for noise.
STEADY = 0.05

#: Seconds without a train after which a capacity is unknown. Confidence halves in as long.
SILENCE_S = 10.0
#: The age of what no train filled.
UNSURE_S = SILENCE_S + 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bit/s of frames, and the age of the newest train behind it in seconds."""

    rate_bps: float
    age_s: float

    @property
    def known(self) -> bool:
        """Whether it is recent enough to go by."""
        return self.age_s <= SILENCE_S

    @property
    def confidence(self) -> float:
        """In (0, 1]: halves every SILENCE_S."""
        return float(0.5 ** (self.age_s / SILENCE_S))

    def to_json(self) -> dict[str, float]:
        """Plain values for JSON."""
        return {"rate_bps": self.rate_bps, "age_s": self.age_s, "confidence": self.confidence}


@dataclass(slots=True)
class RateEstimator:
    """One capacity's."""

    _rounds: deque[list[float]] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    _apart: float = 0.0
    _shown_bps: float = 0.0
    _seen_s: float = 0.0

    def add(self, rates: Sequence[float], at_s: float) -> None:
        """Take the trains of a round, bit/s of frames each, that was over at `at_s`."""
        rates = [rate for rate in rates if rate > 0]
        if not rates:
            return
        if at_s - self._seen_s > SILENCE_S:
            self._rounds.clear()
            self._apart = 0.0
        elif self._rounds:
            self._notice_change(quantile(rates) / self._rate())
        self._rounds.append(rates)
        self._seen_s = at_s
        if not self._shown_bps or abs(self._rate() / self._shown_bps - 1) > STEADY:
            self._shown_bps = self._rate()

    def exceed(self, rates: Sequence[float], at_s: float) -> None:
        """Take trains that did not fill it: it carries at least so much, and is unknown unless it was measured."""
        if rates and quantile(rates) > self._shown_bps:
            self._rounds.clear()
            self._rounds.append(list(rates))
            self._shown_bps = self._rate()
            self._seen_s = max(self._seen_s, at_s - UNSURE_S)

    def estimate(self, now_s: float) -> Estimate | None:
        """The estimate as of `now_s`; None before anything was measured."""
        return Estimate(self._shown_bps, max(now_s - self._seen_s, 0.0)) if self._rounds else None

    def _notice_change(self, off: float) -> None:
        """Drop what was carried before a change; a round that is `off` once may be noise."""
        agrees = self._apart and (off > 1) == (self._apart > 1)
        if max(off, 1 / off) > JUMP:
            self._rounds.clear()
            self._apart = 0.0
        elif max(off, 1 / off) <= CHANGE:
            self._apart = 0.0
        elif agrees:
            newest = self._rounds[-1]
            self._rounds.clear()
            self._rounds.append(newest)
            self._apart = 0.0
        else:
            self._apart = off

    def _rate(self) -> float:
        return quantile([rate for rates in self._rounds for rate in rates])


def quantile(rates: Sequence[float]) -> float:
    """The QUANTILE of rates; of few, one of them."""
    return sorted(rates)[min(int(QUANTILE * len(rates)), len(rates) - 1)]
