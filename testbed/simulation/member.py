"""A member as the controller hears of it: what it reports, of rounds that were simulated."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from testbed.protocol import Arrived, PeerSample, Report, Train
from testbed.simulation.event_queue import SimulatedClocks
from testbed.simulation.members import FinishedRound, StepTotals
from testbed.simulation.round_model import SimulatedRound, Transfer
from testbed.simulation.trains import trains


class SimulatedMember:
    """Tells of its rounds and, where it `measures`, what it sees of paths."""

    def __init__(self, name: str, clocks: SimulatedClocks, measures: bool) -> None:
        self.name = name
        self.measures = measures
        self._clocks = clocks
        self._coming: list[tuple[float, str, Train]] = []  # a heap, by when each is over

    def receives(self, peer: str, sent: Sequence[Transfer]) -> None:
        """Chunks of a peer's come in."""
        self.hears(peer, trains(sent, self._clocks.zero_s))

    def hears(self, peer: str, coming: Iterable[tuple[float, Train]]) -> None:
        """Trains of a peer's come in: when each is over, and the train."""
        for over_s, train in coming if self.measures else ():
            heapq.heappush(self._coming, (over_s, peer, train))

    def arrived(self) -> Arrived:
        """What came in by now."""
        return Arrived(self.name, self._arrivals())

    def report(self, told: FinishedRound, steps: StepTotals, arrivals: bool) -> Report:
        """Of a round, and the steps before it; with what came in by now."""
        done = told.outcome
        sent, came = done.sent[self.name], done.received[self.name]
        began_s = done.began_s[self.name]
        return Report(
            member=self.name,
            round=told.number,
            epoch=told.plan.epoch,
            started_s=self._clocks.zero_s + began_s,
            finished_s=self._clocks.zero_s + done.finished_s[self.name],
            compute_s=0.0,
            paced_s=steps.seconds,
            sent_bytes=round(sum(chunk.bytes for its in sent.values() for chunk in its)),
            received_bytes=round(sum(chunk.bytes for its in came.values() for chunk in its)),
            lost=0,
            duplicated=0,
            waited={peer: max(its[-1].came_s - began_s, 0.0) for peer, its in came.items()},
            peers=tuple(self._sample(peer, its, done) for peer, its in sent.items()) if self.measures else (),
            metrics=steps.metrics,
            arrivals=self._arrivals() if arrivals else {},
            drift=steps.drift,
        )

    def _sample(self, peer: str, sent: Sequence[Transfer], done: SimulatedRound) -> PeerSample:
        there, back = (self.name, peer), (peer, self.name)
        return PeerSample(
            peer=peer,
            bytes=round(sum(chunk.bytes for chunk in sent)),
            busy_s=sum(chunk.ended_s - chunk.began_s for chunk in sent),
            rtt_s=_finite(done.network.delay_s(*there) + done.network.delay_s(*back)),
            retransmits=0,
        )

    def _arrivals(self) -> dict[str, tuple[Train, ...]]:
        found: dict[str, list[Train]] = {}
        while self._coming and self._coming[0][0] <= self._clocks.now_s:
            _, peer, train = heapq.heappop(self._coming)
            found.setdefault(peer, []).append(train)
        return {peer: tuple(its) for peer, its in found.items()}


def _finite(seconds: float) -> float:
    """A round trip that cannot be told is none."""
    return seconds if seconds < float("inf") else 0.0
