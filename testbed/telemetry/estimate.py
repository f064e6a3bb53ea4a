"""Passive estimation of an overlay edge from its sender's own transfers.

A sample's throughput is bytes / busy_s: acknowledged bytes over the time that the sender's socket had data to
send and the receiver took it. It is what the path gave this flow beside all others, thus a lower bound of what
the path carries alone; and lower still when the sender itself got its data in driblets, as a relay does. Which
link is to blame for a slow edge is therefore not decided here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.protocol import PeerSample

#: Weight of the newest sample in the moving average: a step is followed to 90 % within 7 samples.
SMOOTHING = 0.3

#: A sample this many times above or below the average is a change, not noise, when the next one agrees.
JUMP = 1.5

#: The least round trip is taken over so many samples, so that a queue is not taken for distance, nor an old route
#: for the new one for long.
RTT_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an edge's flow got: bit/s of frames, least round trip in seconds, and the age of the newest sample."""

    rate_bps: float
    rtt_s: float
    age_s: float


@dataclass(slots=True)
class EdgeEstimator:
    """Smooths the samples of one edge. After `silence_s` without a sample the edge is unknown, not constant."""

    silence_s: float = 60.0
    _rate_bps: float | None = None
    _outlier_bps: float | None = None
    _rtts: deque[float] = field(default_factory=lambda: deque(maxlen=RTT_SAMPLES))
    _seen_s: float = 0.0

    def add(self, sample: PeerSample, at_s: float) -> None:
        """Take a sample seen at `at_s`. One without busy time says nothing and is passed over."""
        if sample.busy_s <= 0 or sample.bytes <= 0:
            return
        if at_s - self._seen_s > self.silence_s:
            self._rate_bps = None
            self._rtts.clear()
        self._seen_s = at_s
        if sample.rtt_s > 0:
            self._rtts.append(sample.rtt_s)
        self._smooth(8 * sample.bytes / sample.busy_s * MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES)

    def estimate(self, now_s: float) -> Estimate | None:
        """The estimate as of `now_s`, or None while the edge is unknown."""
        age = now_s - self._seen_s
        if self._rate_bps is None or age > self.silence_s:
            return None
        return Estimate(self._rate_bps, min(self._rtts, default=0.0), max(age, 0.0))

    def _smooth(self, rate: float) -> None:
        """EWMA; two outliers in a row on the same side start it afresh at their mean, a single one is held back."""
        average, outlier = self._rate_bps, self._outlier_bps
        if average is None:
            self._rate_bps = rate
        elif average / JUMP <= rate <= average * JUMP:
            self._rate_bps, self._outlier_bps = average + SMOOTHING * (rate - average), None
        elif outlier is not None and (outlier > average) == (rate > average):
            self._rate_bps, self._outlier_bps = (outlier + rate) / 2, None
        else:
            self._outlier_bps = rate
