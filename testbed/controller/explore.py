"""Exploration: which paths to probe, so that what no plan uses is known all the same, at a bounded cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from testbed.planning import Pair
from testbed.protocol import Probe

#: What a probe costs at most: so long, so much. TCP takes half a second of it to find a link's rate; four mebibytes are
#: four ticks at 160 Mbit/s.
PROBE_S = 1.0
PROBE_BYTES = 4 * 1024 * 1024

#: Seconds between two probes of one member, so that probes take a sixth of its time, on links that have room to spare;
#: one with four links that no plan fills has looked at all of them within 24.
SPACING_S = 6.0

#: Seconds after which an edge that a probe left unknown may be probed again.
AGAIN_S = 15.0


class Explorer:
    """Chooses probes. One member sends one at a time; each unknown link is probed by the shortest edge over it."""

    def __init__(self) -> None:
        self._sent_s: dict[str, float] = {}
        self._probed_s: dict[Pair, float] = {}

    def probes(
        self, unknown: Mapping[str, Sequence[Pair]], route: Callable[[Pair], Sequence[str]], now_s: float
    ) -> dict[str, Probe]:
        """The probes to send now, by their sender, for links that are `unknown`, each with the edges that use it."""
        found: dict[str, Probe] = {}
        edges = {min(pairs, key=lambda pair: (len(route(pair)), pair)) for pairs in unknown.values() if pairs}
        for edge in sorted(edges, key=lambda edge: (self._probed_s.get(edge, -AGAIN_S), edge)):
            source, target = edge
            rested = now_s - self._sent_s.get(source, -SPACING_S) >= SPACING_S
            if rested and now_s - self._probed_s.get(edge, -AGAIN_S) >= AGAIN_S:
                found[source] = Probe(target, PROBE_BYTES, PROBE_S)
                self._sent_s[source] = self._probed_s[edge] = now_s
        return found
