"""Probes on simulated time: what they would have found out of a path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import ceil, log2

from testbed.planning import Pair
from testbed.planning.constraints import GOODPUT
from testbed.protocol import Probe
from testbed.simulation.round import SimulatedRound, Transfer
from testbed.simulation.underlay import Underlay, UnderlayState
from testbed.sync.transport.probe import FRAME_BYTES

#: TCP begins with ten packets a round trip, and doubles that.
BEGIN_BYTES = 10 * 1448

#: Beside what rounds send a probe gets this part of a link at least.
LEAST_PART = 0.25

#: A probe meets what these rounds sent: the one that is on, and the one before.
KEPT = 2


class SimulatedProbes:
    """Takes what rounds leave of a path. It takes nothing from them in turn: it is 2 % of what the path carries."""

    def __init__(self, underlay: Underlay) -> None:
        self._underlay = underlay
        self._rounds: deque[SimulatedRound] = deque(maxlen=KEPT)

    def add(self, done: SimulatedRound) -> None:
        """A round of which probes from now on may meet something."""
        self._rounds.append(done)

    def sent(self, member: str, probe: Probe, now_s: float) -> list[Transfer]:
        """What comes of a probe that a member is told to send now; nothing where the path leads nowhere."""
        state = self._underlay.at(now_s)
        pair = member, probe.peer
        a, b = (state.sites[name] for name in pair)
        delay_s = state.delay_s(*pair)
        if a == b or not state.routes.reach(a, b):
            return []
        links = [state.states[name] for name in state.routes.links(a, b)]
        alone = min(link.rate_bps * link.up for link in links) * GOODPUT / 8
        if not alone:
            return []
        rtt_s = delay_s + state.delay_s(*reversed(pair))
        doublings = max(ceil(log2(max(alone * rtt_s / BEGIN_BYTES, 1.0))), 0)
        began_s = now_s + doublings * rtt_s
        size = min(probe.bytes, alone * probe.seconds)
        rate = self._left(state, pair, began_s, size / alone)
        return list(_frames(size, rate, began_s, delay_s))

    def _left(self, state: UnderlayState, pair: Pair, began_s: float, seconds: float) -> float:
        """Bytes of payload a second that are left on the path of a pair, from a moment on for so many seconds."""
        rates = []
        for link in state.routes.links(*(state.sites[name] for name in pair)):
            whole = state.states[link].rate_bps * GOODPUT / 8
            rates.append(max(whole - self._carried(state, link, began_s, seconds), LEAST_PART * whole))
        return min(rates)

    def _carried(self, state: UnderlayState, link: str, began_s: float, seconds: float) -> float:
        """Bytes a second that rounds sent over a link then."""
        size = 0.0
        for done in self._rounds:
            for (source, target), its in done.transfers.items():
                a, b = state.sites[source], state.sites[target]
                if state.routes.reach(a, b) and link in state.routes.links(a, b):
                    size += sum(_within(chunk, began_s, began_s + seconds) for chunk in its)
        return size / seconds


def _within(chunk: Transfer, began_s: float, ended_s: float) -> float:
    """The bytes of a chunk that were sent within a time."""
    both_s = min(chunk.ended_s, ended_s) - max(chunk.began_s, began_s)
    return chunk.bytes * both_s / (chunk.ended_s - chunk.began_s) if both_s > 0 else 0.0


def _frames(size: float, rate: float, began_s: float, delay_s: float) -> Iterator[Transfer]:
    for number in range(int(size // FRAME_BYTES)):
        first_s = began_s + number * FRAME_BYTES / rate
        ended_s = began_s + (number + 1) * FRAME_BYTES / rate
        yield Transfer(first_s, ended_s, first_s + delay_s, ended_s + delay_s, FRAME_BYTES)
