"""Probes on simulated time: what they would have found out of a path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from testbed.planning import Pair
from testbed.planning.constraints import GOODPUT
from testbed.protocol import PROBE_TRAINS, Probe, Train
from testbed.simulation.event_queue import SimulatedClocks
from testbed.simulation.network import NetworkState, SimulatedNetwork
from testbed.simulation.round_model import SimulatedRound, Transfer
from testbed.sync.transport.probe import COUNTED_BYTES, PAUSE_S, paced

#: Beside what rounds send a probe gets this part of a link at least.
LEAST_PART = 0.25

#: A probe meets what these rounds sent: the one that is on, and the one before.
KEPT = 2


class SimulatedProbes:
    """Takes what rounds leave of a path. It takes nothing from them in turn: it is 2 % of what the path carries."""

    def __init__(self, network: SimulatedNetwork, clocks: SimulatedClocks) -> None:
        self._network = network
        self._clocks = clocks
        self._rounds: deque[SimulatedRound] = deque(maxlen=KEPT)

    def add(self, done: SimulatedRound) -> None:
        """A round of which probes from now on may meet something."""
        self._rounds.append(done)

    def trains(self, member: str, probe: Probe, now_s: float) -> Iterator[tuple[float, Train]]:
        """When each train of a probe that a member is told to send now is over (seconds after training began), and the
        train, in Unix time; none where the path leads nowhere."""
        state = self._network.at(now_s)
        pair = member, probe.peer
        a, b = (state.sites[name] for name in pair)
        if a == b or not state.routes.reach(a, b):
            return
        links = (state.states[name] for name in state.routes.links(a, b))
        if not all(link.up and link.rate_bps for link in links):
            return
        packets, pace = paced(probe)
        rate = min(self._left(state, pair, now_s, PROBE_TRAINS * PAUSE_S), pace)
        size = (packets - 1) * COUNTED_BYTES
        seconds = max(round(size / rate, 6), 1e-6)
        for number in range(PROBE_TRAINS):
            first_s = now_s + number * (size / pace + PAUSE_S) + state.delay_s(*pair)
            began_s = round(self._clocks.zero_s + first_s, 5)
            yield first_s + seconds, Train(began_s, seconds, int(size), int(pace))

    def _left(self, state: NetworkState, pair: Pair, began_s: float, seconds: float) -> float:
        """Bytes of payload a second that are left on the path of a pair, from a moment on for so many seconds."""
        rates = []
        for link in state.routes.links(*(state.sites[name] for name in pair)):
            whole = state.states[link].rate_bps * GOODPUT / 8
            rates.append(max(whole - self._carried(state, link, began_s, seconds), LEAST_PART * whole))
        return min(rates)

    def _carried(self, state: NetworkState, link: str, began_s: float, seconds: float) -> float:
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
