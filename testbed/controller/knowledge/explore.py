"""Exploration: which paths to probe, so that what no plan uses is known all the same, at a bounded cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from testbed.controller.knowledge.knowledge import FORGOTTEN_S
from testbed.planning import Edge, Pair, View
from testbed.protocol import PROBE_TRAINS, Probe

#: The part of what a path could carry that probes of it take.
SHARE = 0.02

#: Packets leave so many times as fast as the path was believed to carry at most of late: a link that came back shows
#: all that it carries, and one that did not change queues two thirds of a train.
FASTER = 3.0

#: What a train takes where the path carries so much. In less, what hosts do meanwhile weighs too much; 20 ms were
#: within 1 % too, and held rounds up more. So many bytes it has at least, eleven packets, and at most.
TRAIN_S = 0.012
LEAST_BYTES, MOST_BYTES = 16 * 1024, 256 * 1024

#: Between two probes of one edge are so many seconds at least, and between two of one member.
AGAIN_S = 4.0
SPACING_S = 1.0


class Explorer:
    """Chooses probes. One member sends one at a time; each unknown link is probed by the shortest edge over it."""

    def __init__(self) -> None:
        self._sent_s: dict[str, float] = {}
        self._probed_s: dict[Pair, float] = {}
        self._most: dict[Pair, tuple[Edge, float]] = {}

    def probes(self, unknown: Mapping[str, Sequence[Pair]], view: View, now_s: float) -> dict[str, Probe]:
        """The probes to send now, by their sender, for links that are `unknown`, each with the edges that use it.

        What a path could carry is the most that the `view` believed in the last FORGOTTEN_S: where that is too little,
        the next probe says more. What was declared counts no more once it is measured: members who declare nothing are
        taken for 100 Mbit/s apart, and probes as fast as that would take 18 % of what a path of 5 carries.
        """
        for pair, edge in view.edges.items():
            most, at_s = self._most.get(pair, (edge, now_s))
            first = edge.source == "measured" and most.source != "measured"
            if edge.rate_bps >= most.rate_bps or first or now_s - at_s > FORGOTTEN_S:
                most, at_s = edge, now_s
            self._most[pair] = most, at_s
        found: dict[str, Probe] = {}
        routes = view.routes
        edges = {min(pairs, key=lambda pair: (len(routes.get(pair, ())), pair)) for pairs in unknown.values() if pairs}
        for pair in sorted(edges, key=lambda pair: (self._probed_s.get(pair, -inf), pair)):
            if self._is_due(pair, now_s):
                found[pair[0]] = probe_of(pair[1], self._most[pair][0].rate_bps)
                self._sent_s[pair[0]] = self._probed_s[pair] = now_s
        return found

    def redeclare(self) -> None:
        """Another network is declared: what paths carried before says nothing of it."""
        self._most.clear()

    def _is_due(self, pair: Pair, now_s: float) -> bool:
        """Whether an edge may be probed again: so late that a probe is no more than SHARE of what it could carry
        meanwhile, which is the most that it was believed to."""
        most_bps = self._most[pair][0].rate_bps
        again_s = max(AGAIN_S, 8 * probe_of(pair[1], most_bps).bytes / (SHARE * most_bps))
        rested = now_s - self._sent_s.get(pair[0], -inf) >= SPACING_S
        return rested and now_s - self._probed_s.get(pair, -inf) >= again_s


def probe_of(peer: str, most_bps: float) -> Probe:
    """A probe of a path that was believed to carry so much at most."""
    train = min(max(TRAIN_S * most_bps / 8, LEAST_BYTES), MOST_BYTES)
    return Probe(peer, int(PROBE_TRAINS * train), 8 * PROBE_TRAINS * train / (FASTER * most_bps))
