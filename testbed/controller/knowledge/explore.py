"""Exploration: which paths to probe, so that what no plan uses is known all the same, at a bounded cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from testbed.planning import Edge, Pair, View
from testbed.protocol import Probe

#: The part of what a path could carry that probes of it take.
SHARE = 0.02

#: But no fewer bytes: TCP begins with 14 KB a round trip and doubles that, so these are four round trips, of which the
#: later ones make trains. 52 KB into a link believed to carry 1.4 Mbit/s made none, and its recovery was never seen; by
#: what it had carried before, 690 KB, they lost 540 packets while it had not recovered and held rounds up for 2 s.
LEAST_BYTES = 192 * 1024

#: An edge that a probe left unknown may be probed again after so many round trips, within these seconds: what it takes
#: to find out grows with the round trip. Between two probes of one member are SPACING_S.
AGAIN_TRIPS, AGAIN_LEAST_S, AGAIN_MOST_S = 60, 5.0, 15.0
SPACING_S = 3.0

#: TCP doubles what it sends each round trip: after so many it has found what the path carries, or as much as a probe
#: may take. A path without a round trip is given a little time too.
ROUND_TRIPS, LEAST_S = 6, 0.3


class Explorer:
    """Chooses probes. One member sends one at a time; each unknown link is probed by the shortest edge over it."""

    def __init__(self) -> None:
        self._sent_s: dict[str, float] = {}
        self._probed_s: dict[Pair, float] = {}
        self._most_bps: dict[Pair, float] = {}

    def probes(self, unknown: Mapping[str, Sequence[Pair]], view: View, now_s: float) -> dict[str, Probe]:
        """The probes to send now, by their sender, for links that are `unknown`, each with the edges that use it.
        What a path could carry is what the `view` believes: where that is too little, the next probe says more."""
        for pair, edge in view.edges.items():
            self._most_bps[pair] = max(self._most_bps.get(pair, 0.0), edge.rate_bps)
        found: dict[str, Probe] = {}
        routes = view.routes
        edges = {min(pairs, key=lambda pair: (len(routes.get(pair, ())), pair)) for pairs in unknown.values() if pairs}
        for pair in sorted(edges, key=lambda pair: (self._probed_s.get(pair, -AGAIN_MOST_S), pair)):
            rested = now_s - self._sent_s.get(pair[0], -SPACING_S) >= SPACING_S
            if rested and now_s - self._probed_s.get(pair, -inf) >= self._again_s(pair, view.edges[pair].rtt_s):
                found[pair[0]] = _probe(pair, view.edges[pair])
                self._sent_s[pair[0]] = self._probed_s[pair] = now_s
        return found

    def _again_s(self, pair: Pair, rtt_s: float) -> float:
        """Seconds until the edge may be probed again: so many that LEAST_BYTES are no more than SHARE of what it could
        carry, which is the most that it was believed to."""
        return max(again_s(rtt_s), 8 * LEAST_BYTES / (SHARE * self._most_bps[pair]))


def _probe(pair: Pair, edge: Edge) -> Probe:
    most = max(SHARE * again_s(edge.rtt_s) * edge.rate_bps / 8, LEAST_BYTES)
    return Probe(pair[1], int(most), ROUND_TRIPS * edge.rtt_s + LEAST_S)


def again_s(rtt_s: float) -> float:
    """Seconds from one probe of an edge to the next."""
    return min(max(AGAIN_TRIPS * rtt_s, AGAIN_LEAST_S), AGAIN_MOST_S)
