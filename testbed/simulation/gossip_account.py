"""What a member that gossips tells of its iterations, on simulated time: as sync/gossip/account does it live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from testbed.protocol import Report
from testbed.simulation.event_queue import SimulatedClocks
from testbed.simulation.gossips import Gossips
from testbed.sync.gossip.account import StepFigures
from testbed.sync.gossip.message_codec import WireMessage


@dataclass(slots=True)
class IterationTally:
    """What a member has done since its last report: seconds of its steps, bytes, seconds waited by peer."""

    paced_s: float = 0.0
    steps: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    waited: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, float | None] = field(default_factory=dict)


class GossipAccount:
    """One member's; `tell` hears a Report of each iteration that it has entered, but for the first."""

    def __init__(self, gossips: Gossips, clocks: SimulatedClocks, tell: Callable[[Report], None]) -> None:
        self._its = gossips
        self._clocks = clocks
        self._tell = tell
        self._entered_s = 0.0
        self._tally = IterationTally()

    def sent(self, packed: WireMessage) -> None:
        """A message goes out."""
        self._tally.sent_bytes += self._its.bytes_of(packed)

    def received(self, packed: WireMessage) -> None:
        """A message came."""
        self._tally.received_bytes += self._its.bytes_of(packed)

    def waited(self, peer: str, seconds: float) -> None:
        """It has waited for so long until a message of the peer let it go on, or something else (no peer)."""
        if peer:
            self._tally.waited[peer] += seconds  # type: ignore[assignment]

    def stepped(self, spent: StepFigures) -> None:
        """A step is done."""
        self._tally.paced_s += spent.paced_s
        self._tally.steps += 1
        self._tally.metrics |= spent.metrics

    def advanced(self, iteration: int) -> None:
        """It has entered an iteration: that is told, with the times of the one before."""
        now_s = self._clocks.now_s
        if iteration > self._its.place.first:
            tally, self._tally = self._tally, IterationTally()
            self._tell(self._report(iteration, tally))
        self._entered_s = now_s

    def _report(self, iteration: int, tally: IterationTally) -> Report:
        participant = self._its.participant
        steps = {"steps": tally.steps} if tally.steps else {}
        return Report(
            member=participant.name,
            round=iteration,
            epoch=0,
            started_s=self._clocks.zero_s + self._entered_s,
            finished_s=self._clocks.unix(),
            compute_s=0.0,
            paced_s=tally.paced_s,
            sent_bytes=round(tally.sent_bytes),
            received_bytes=round(tally.received_bytes),
            lost=0,
            duplicated=0,
            waited=dict(tally.waited),
            metrics={**tally.metrics, **steps, **participant.metrics},
        )
