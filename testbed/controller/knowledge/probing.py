"""Probing: which paths to probe, so that links that no plan uses are known too, at a bounded cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf

from testbed.controller.knowledge.knowledge import FORGOTTEN_S
from testbed.planning import Edge, Pair, View
from testbed.protocol import PROBE_TRAINS, Probe

#: Probes take at most this part of the rate that their path could carry; over a link of the plan in force, the second.
SHARE, USED_SHARE = 0.02, 0.03

#: A probe's packets leave this many times as fast as the highest rate that was believed of the path recently. A link
#: that came back then shows its whole rate; on an unchanged link two thirds of a train queue.
FASTER = 3.0

#: Seconds that a train takes on a path with the believed rate. In a shorter train, delays in the hosts weigh too much;
#: trains of 20 ms were within 1 % too, and held rounds up more.
TRAIN_S = 0.012

#: Limits of a train's size in bytes. The lower one is eleven packets.
LEAST_BYTES, MOST_BYTES = 16 * 1024, 256 * 1024

#: The least seconds between two probes of one edge, and between two probes that one member sends.
AGAIN_S, SPACING_S = 4.0, 1.0
#: The same where the probe is over a link of the plan in force, whose steps are to be noticed within 2 s. Simulated, 46
#: of 53 steps of `redraw-6`, `fades-7` and `redraw-4` were noticed so soon instead of 32 of 54, with probes of 1.8 % of
#: what links could carry instead of 0.8 %.
USED_AGAIN_S, USED_SPACING_S = 1.0, 0.5


class ProbeScheduler:
    """Chooses which edges to probe when: an unknown link is probed by the shortest edge over it.

    A member sends one probe at a time, at most one in SPACING_S, or in USED_SPACING_S over a link of the plan in force.
    """

    def __init__(self) -> None:
        self._sent_s: dict[str, float] = {}
        self._probed_s: dict[Pair, float] = {}
        self._most: dict[Pair, tuple[Edge, float]] = {}
        self._links_rested_s: dict[str, float] = {}

    def probes(
        self, unknown: Mapping[str, Sequence[Pair]], view: View, now_s: float, used: Collection[str] = ()
    ) -> dict[str, Probe]:
        """Return the probes to send now, by their sender.

        A path could carry the highest rate that the view had for it in the last FORGOTTEN_S seconds; if that is too
        low, the next probe shows more. A declared rate counts until the path is measured. Members that declare nothing
        are assumed to be joined by 100 Mbit/s, and probes at that rate would take 18 % of a path of 5 Mbit/s.

        Args:
            unknown: The edges that use each unknown link.
            view: The network as it is known now.
            now_s: The time in seconds of a clock that never jumps.
            used: The links of the plan in force, which are probed more often.
        """
        for pair, edge in view.edges.items():
            most, at_s = self._most.get(pair, (edge, now_s))
            first = edge.source == "measured" and most.source != "measured"
            if edge.rate_bps >= most.rate_bps or first or now_s - at_s > FORGOTTEN_S:
                most, at_s = edge, now_s
            self._most[pair] = most, at_s
        found: dict[str, Probe] = {}
        routes = view.routes
        shortest = {
            name: min(pairs, key=lambda pair: (len(routes.get(pair, ())), pair))
            for name, pairs in unknown.items()
            if pairs
        }
        urgent = {pair for name, pair in shortest.items() if name in used}
        for pair in sorted({*shortest.values()}, key=lambda pair: (self._probed_s.get(pair, -inf), pair)):
            route = routes.get(pair, ())
            if self._is_due(pair, now_s, pair in urgent, route):
                most_bps = self._most[pair][0].rate_bps
                found[pair[0]] = probe = probe_of(pair[1], most_bps)
                self._sent_s[pair[0]] = self._probed_s[pair] = now_s
                for name in route:
                    could_bps = max(most_bps, view.links[name].rate_bps)
                    self._links_rested_s[name] = now_s + 8 * probe.bytes / (USED_SHARE * could_bps)
        return found

    def redeclare(self) -> None:
        """Forget the rates of paths: another network is declared."""
        self._most.clear()

    def _is_due(self, pair: Pair, now_s: float, urgent: bool, route: Sequence[str]) -> bool:
        """Return whether an edge may be probed again.

        It may once a probe's bytes are at most SHARE of what the path could carry since the last probe. Where the probe
        is `urgent`, that is USED_SHARE of the path and of each link: without the latter, probes over all edges of a
        site took 6 % of its capped egress in `cloud-6`.
        """
        most_bps = self._most[pair][0].rate_bps
        if urgent and any(now_s < self._links_rested_s.get(name, -inf) for name in route):
            return False
        share, least_s, spacing_s = SHARE, AGAIN_S, SPACING_S
        if urgent:
            share, least_s, spacing_s = USED_SHARE, USED_AGAIN_S, USED_SPACING_S
        again_s = max(least_s, 8 * probe_of(pair[1], most_bps).bytes / (share * most_bps))
        rested = now_s - self._sent_s.get(pair[0], -inf) >= spacing_s
        return rested and now_s - self._probed_s.get(pair, -inf) >= again_s


def probe_of(peer: str, most_bps: float) -> Probe:
    """Return a probe to `peer` over a path that was believed to carry at most `most_bps`."""
    train = min(max(TRAIN_S * most_bps / 8, LEAST_BYTES), MOST_BYTES)
    return Probe(peer, int(PROBE_TRAINS * train), 8 * PROBE_TRAINS * train / (FASTER * most_bps))
