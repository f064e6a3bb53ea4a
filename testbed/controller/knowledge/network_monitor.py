"""Measurement of the network by members' transfers, and by probes of the links that no transfer uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from testbed.controller.knowledge.knowledge import FORGOTTEN_S, FRESH_S, Knowledge
from testbed.controller.model.actions import Actions, Tell
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.round_log import ReportedRound, RoundLog
from testbed.plan import Plan
from testbed.planning import Edge, Pair, View
from testbed.protocol import PROBE_TRAINS, Arrived, Probe
from testbed.telemetry.estimate import Estimate

#: A probe's packets leave this many times as fast as the highest rate that was believed of the path recently. A link
#: that came back then shows its whole rate; on an unchanged link two thirds of a train queue.
FASTER = 3.0

#: Seconds that a train takes on a path with the believed rate. In a shorter train, delays in the hosts weigh too much;
#: trains of 20 ms were within 1 % too, and held rounds up more.
TRAIN_S = 0.012

#: Limits of a train's size in bytes. The lower one is eleven packets.
LEAST_BYTES, MOST_BYTES = 16 * 1024, 256 * 1024


class ProbeLimits(NamedTuple):
    """How much probes may take, and how often they may be sent."""

    #: The part of the rate that a probe's path could carry.
    share: float
    #: The least seconds between two probes of one edge, and between two probes that one member sends.
    again_s: float
    spacing_s: float


USUAL = ProbeLimits(0.02, 4.0, 1.0)
#: The limits of probes over a link of the plan in force, whose steps are to be noticed within 2 s. Simulated, 46 of 53
#: steps of `redraw-6`, `fades-7` and `redraw-4` were noticed so soon instead of 32 of 54, with probes of 1.8 % of what
#: links could carry instead of 0.8 %.
USED = ProbeLimits(0.03, 1.0, 0.5)


class ProbeScheduler:
    """Chooses which edges to probe when: an unknown link is probed by the shortest edge over it.

    A member sends one probe at a time. Probes keep the limits USUAL, or USED over a link of the plan in force.
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
                    self._links_rested_s[name] = now_s + 8 * probe.bytes / (USED.share * could_bps)
        return found

    def redeclare(self) -> None:
        """Forget the rates of paths: another network is declared."""
        self._most.clear()

    def _is_due(self, pair: Pair, now_s: float, urgent: bool, route: Sequence[str]) -> bool:
        """Return whether an edge may be probed again.

        It may once a probe's bytes are at most the limits' share of what the path could carry since the last probe.
        Where the probe is `urgent`, that holds of each link, too: without this, probes over all edges of a site took
        6 % of its capped egress in `cloud-6`.
        """
        most_bps = self._most[pair][0].rate_bps
        if urgent and any(now_s < self._links_rested_s.get(name, -inf) for name in route):
            return False
        limits = USED if urgent else USUAL
        again_s = max(limits.again_s, 8 * probe_of(pair[1], most_bps).bytes / (limits.share * most_bps))
        rested = now_s - self._sent_s.get(pair[0], -inf) >= limits.spacing_s
        return rested and now_s - self._probed_s.get(pair, -inf) >= again_s


def probe_of(peer: str, most_bps: float) -> Probe:
    """Return a probe to `peer` over a path that was believed to carry at most `most_bps`."""
    train = min(max(TRAIN_S * most_bps / 8, LEAST_BYTES), MOST_BYTES)
    return Probe(peer, int(PROBE_TRAINS * train), 8 * PROBE_TRAINS * train / (FASTER * most_bps))


#: Seconds by which measuring lags behind the newest messages. A member reports a train when the train is over, and the
#: trains to other members that it is compared with arrive up to this much later.
STRAGGLES_S = 0.3

#: Seconds after which a measured link is probed again while a round is slower than expected.
HURRY_S = 1.0

#: Seconds after which a measured link of the plan in force is probed again.
USED_FRESH_S = 1.0


class NetworkMonitor:
    """Measures links after each round and during long rounds, and has members probe links that no transfer measures.

    Members and rounds are only read. `estimated` is called with the time and the estimates after each measurement.

    Attributes:
        measured_s: When links were last measured during a round (Unix time in seconds).
    """

    def __init__(
        self,
        knowledge: Knowledge,
        rounds: RoundLog,
        membership: AllReduceMembership,
        estimated: Callable[[float, Mapping[str, Estimate]], None],
    ) -> None:
        self.measured_s = 0.0
        self._knowledge = knowledge
        self._rounds = rounds
        self._membership = membership
        self._estimated = estimated
        self._probing = ProbeScheduler()
        self._heard_s: dict[str, float] = {}

    def redeclare(self) -> None:
        """Forget the rates that probes go by: another network is declared."""
        self._probing.redeclare()

    def round_over(self, done: ReportedRound, speeds: Mapping[str, float], now: float) -> bool:
        """Measure links by a completed round.

        Returns whether a link fell during the round. `speeds` are the members' samples per second as parts of their
        declared ones, and `now` is Unix time in seconds.
        """
        self._knowledge.observe(done.samples(), done.arrivals(), now)
        fell = bool(self._knowledge.fell(now))
        self._knowledge.round_over(now)
        self._knowledge.add_speeds(dict(speeds))
        self._estimated(now, self._knowledge.estimates(now))
        return fell

    def arrived(self, arrived: Arrived, now: float) -> bool:
        """Take a member's trains so far in a long round, and measure links once all present members sent theirs.

        Returns whether links were measured now (Unix time in seconds).
        """
        self._heard_s[arrived.member] = now
        self._knowledge.add_trains({(peer, arrived.member): trains for peer, trains in arrived.arrivals.items()})
        heard_s = self._all_heard_s()
        if heard_s <= self.measured_s:
            return False
        self.measured_s = now
        self._knowledge.measure(heard_s - STRAGGLES_S)
        self._estimated(now, self._knowledge.estimates(now))
        return True

    def _all_heard_s(self) -> float:
        """Return the time by which each present member sent trains since the last complete round, else 0."""
        heard_s = min((self._heard_s.get(member, 0.0) for member in self._membership.present), default=0.0)
        last = self._rounds.last
        return heard_s if last is None or heard_s > last.finished_s else 0.0

    def probes(self, now: float, monotonic_s: float, plan: Plan, hurry: bool = False) -> Actions:
        """Have members probe the links that are not known well.

        Args:
            now: Unix time in seconds.
            monotonic_s: The same moment in seconds of the monotonic clock.
            plan: The plan in force. Measurements of its links count for USED_FRESH_S only.
            hurry: Whether a round is slow for a reason that is not known: measurements then count for HURRY_S only.
        """
        present = self._membership.present
        used = {name for source, target, _ in plan.edges() for name in self._knowledge.route((source, target))}
        urgent = {name: its for name, its in self._knowledge.unknown(now, USED_FRESH_S).items() if name in used}
        unknown = {
            name: [pair for pair in pairs if present.issuperset(pair)]
            for name, pairs in {**self._knowledge.unknown(now, HURRY_S if hurry else FRESH_S), **urgent}.items()
        }
        for member, probe in self._probing.probes(unknown, self._knowledge.view(now), monotonic_s, urgent).items():
            yield Tell(member, probe)
