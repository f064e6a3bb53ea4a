"""Measurement of the network by members' transfers, and by probes of links that are unused or may have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from testbed.controller.knowledge.knowledge import FORGOTTEN_S, Knowledge
from testbed.controller.model.actions import Actions, Tell
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.round_log import ReportedRound, RoundLog
from testbed.plan import Plan
from testbed.planning import Edge, Pair, View
from testbed.protocol import PROBE_TRAINS, Arrived, Probe
from testbed.telemetry.estimate import Estimate

#: A probe's packets leave this many times as fast as the highest rate that was believed of the path recently. A link
#: that came back then shows its whole rate. On an unchanged link eleven twelfths of a train queue; with 3, two thirds
#: did, and a link that came back from 3 to 25 Mbit/s took two more probes.
FASTER = 12.0

#: Seconds that a train takes on a path with the believed rate. In a shorter train, delays in the hosts weigh too much;
#: trains of 20 ms were within 1 % too, and held rounds up more. A train that only looks for a change may be shorter.
TRAIN_S, LOOK_TRAIN_S = 0.012, 0.008

#: Limits of a train's size in bytes. The lower one is eleven packets.
LEAST_BYTES, MOST_BYTES = 16 * 1024, 256 * 1024


class ProbeKind(NamedTuple):
    """How many trains a probe has, and when it may be sent."""

    trains: int
    #: The part of the rate that its path could carry.
    share: float
    #: The least seconds between two probes of one edge, and after another probe that the member sends.
    again_s: float
    spacing_s: float
    #: Seconds by which the probe may be early, before the path's links have made up for earlier probes at USED's share.
    early_s: float


#: A probe of a link that is unknown.
USUAL = ProbeKind(PROBE_TRAINS, 0.02, 4.0, 1.0, 0.0)
#: A probe of an unknown link of the plan in force. With a `spacing_s` of 0.5 s it was never due beside the looks that
#: its member sends at other links, and a rise and a fall of the link went unseen for 2.6 and 1.5 s.
USED = ProbeKind(PROBE_TRAINS, 0.025, 0.5, 0.1, 0.0)
#: A look at a link of the plan in force that has an estimate: one train shows whether the rate is still as estimated. A
#: member looks at several links at once where the link that their paths share is wide.
LOOK = ProbeKind(1, 0.025, 0.5, 0.0, 0.05)
#: A look at a link of the plan in force that was measured less than LOOK_S ago. The link's rate may have risen: BBR
#: sends at the old rate for a while.
GLANCE = LOOK._replace(again_s=1.0)
#: The probe of a link of the plan in force whose estimate is unsure or contradicted.
DOUBT = ProbeKind(2, inf, 0.25, 0.1, 1.5)


class ProbeScheduler:
    """Chooses which edges to probe when: an unknown link is probed by the shortest edge over it."""

    def __init__(self) -> None:
        self._sent_s: dict[str, float] = {}
        self._probed: dict[Pair, tuple[float, int]] = {}  # when, and by how many bytes
        self._most: dict[Pair, tuple[Edge, float]] = {}
        self._links_rested_s: dict[str, float] = {}

    def probes(
        self, unknown: Mapping[str, tuple[ProbeKind, Sequence[Pair]]], view: View, now_s: float
    ) -> list[tuple[str, Probe]]:
        """Return the probes to send now, each with its sender; a member may send several.

        A probe's size and pace follow from the rate that its path is assumed to carry: the highest rate that the view
        had for the path in the last FORGOTTEN_S seconds. If that is too low, the next probe shows more. A declared rate
        counts only until the path is measured: members that declare nothing are assumed to be joined by 100 Mbit/s, and
        probes at that rate would take 18 % of a path of 5 Mbit/s.

        Args:
            unknown: The kind of probe that each link needs, and the edges that use the link.
            view: The network as it is known now.
            now_s: The time in seconds of a clock that never jumps.
        """
        for pair, edge in view.edges.items():
            most, at_s = self._most.get(pair, (edge, now_s))
            first = edge.source == "measured" and most.source != "measured"
            if edge.rate_bps >= most.rate_bps or first or now_s - at_s > FORGOTTEN_S:
                most, at_s = edge, now_s
            self._most[pair] = most, at_s
        found: list[tuple[str, Probe]] = []
        routes = view.routes
        wanted: dict[Pair, set[ProbeKind]] = {}
        for kind, pairs in unknown.values():
            if pairs:
                shortest = min(pairs, key=lambda pair: (len(routes.get(pair, ())), pair))
                wanted.setdefault(shortest, set()).add(kind)
        for pair in sorted(
            wanted, key=lambda pair: (DOUBT not in wanted[pair], self._probed.get(pair, (-inf, 0))[0], pair)
        ):
            route = routes.get(pair) or (f"{pair[0]}=>{pair[1]}",)
            kinds = sorted(wanted[pair], key=(DOUBT, USED, USUAL, LOOK, GLANCE).index)
            due = next((kind for kind in kinds if self._is_due(pair, kind, now_s, route)), None)
            if due is None:
                continue
            most_bps = self._most[pair][0].rate_bps
            probe = probe_of(pair[1], most_bps, due.trains)
            found.append((pair[0], probe))
            self._sent_s[pair[0]] = now_s
            self._probed[pair] = now_s, probe.bytes
            for name in route:
                could_bps = max(most_bps, view.links[name].rate_bps) if name in view.links else most_bps
                rested_s = max(now_s, self._links_rested_s.get(name, -inf))
                self._links_rested_s[name] = rested_s + 8 * probe.bytes / (USED.share * could_bps)
        return found

    def redeclare(self) -> None:
        """Forget the rates of paths: another network is declared."""
        self._most.clear()

    def _is_due(self, pair: Pair, kind: ProbeKind, now_s: float, route: Sequence[str]) -> bool:
        """Return whether an edge may be probed again.

        It may once the last probe's bytes are at most the kind's share of what the path could carry since then. All
        probes over a link together take USED's share of it: without this, probes over all edges of a site took 6 % of
        its capped egress in `cloud-6`.
        """
        if now_s - self._sent_s.get(pair[0], -inf) < kind.spacing_s:
            return False
        if any(now_s + kind.early_s < self._links_rested_s.get(name, -inf) for name in route):
            return False
        most_bps = self._most[pair][0].rate_bps
        probed_s, size = self._probed.get(pair, (-inf, 0))
        again_s = max(kind.again_s, 8 * min(size, probe_of(pair[1], most_bps).bytes) / (kind.share * most_bps))
        return now_s - probed_s >= again_s


def probe_of(peer: str, most_bps: float, trains: int = PROBE_TRAINS) -> Probe:
    """Return a probe of `trains` trains to `peer` over a path that was believed to carry at most `most_bps`."""
    lasting_s = LOOK_TRAIN_S if trains == 1 else TRAIN_S
    train = min(max(lasting_s * most_bps / 8, LEAST_BYTES), MOST_BYTES)
    return Probe(peer, int(trains * train), 8 * trains * train / (FASTER * most_bps), trains)


#: Seconds by which measuring lags behind the newest messages. A member reports a train when the train is over, and the
#: trains to other members that it is compared with arrive up to this much later.
STRAGGLES_S = 0.2

#: A link that the plan in force does not use is probed if it was measured longer ago than this, in seconds: usually,
#: and while a round is slower than expected.
FRESH_S, HURRY_S = 3.0, 1.0

#: A link of the plan in force that was measured longer ago than this, in seconds, is looked at more often.
LOOK_S = 0.35


class NetworkMonitor:
    """Measures links after each round and during rounds, and has members probe links that are not known well.

    Members and rounds are only read. `estimated` is called with the time and the estimates after each measurement.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        rounds: RoundLog,
        membership: AllReduceMembership,
        estimated: Callable[[float, Mapping[str, Estimate]], None],
    ) -> None:
        self._knowledge = knowledge
        self._rounds = rounds
        self._membership = membership
        self._estimated = estimated
        self._probing = ProbeScheduler()
        self._heard_s: dict[str, float] = {}
        self._measured_s = 0.0  # when links were last measured during a round (Unix time)

    def redeclare(self) -> None:
        """Forget the rates that probes are based on: another network is declared."""
        self._probing.redeclare()

    def round_over(self, done: ReportedRound, speeds: Mapping[str, float], now: float) -> bool:
        """Measure links by a completed round.

        Returns whether a link fell during the round. `speeds` are the members' samples per second as fractions of the
        declared ones, and `now` is Unix time in seconds.
        """
        self._knowledge.observe(done.samples(), done.arrivals(), now)
        fell = bool(self._knowledge.fell(now))
        self._knowledge.round_over(now)
        self._knowledge.add_speeds(speeds)
        self._estimated(now, self._knowledge.estimates(now))
        return fell

    def arrived(self, arrived: Arrived, now: float) -> bool:
        """Take a member's trains so far in a round, and measure links once all present members sent theirs.

        Returns whether links were measured now (Unix time in seconds).
        """
        if now < self._measured_s:  # the clock was set back: the times so far are of a clock that no message will reach
            self._measured_s = 0.0
            self._heard_s.clear()
        self._heard_s[arrived.member] = now
        self._knowledge.add_trains({(peer, arrived.member): trains for peer, trains in arrived.arrivals.items()})
        heard_s = self._all_heard_s()
        if heard_s <= self._measured_s:
            return False
        self._measured_s = now
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
            plan: The plan in force, whose links are looked at although they are known.
            hurry: Whether a round is slow for a reason that is not known: measurements then count for HURRY_S only.
        """
        present, knowledge, estimates = self._membership.present, self._knowledge, self._knowledge.estimates(now)
        used = {name for source, target, _ in plan.edges() for name in knowledge.route((source, target))}
        contradicted, fresh_s = knowledge.contradicted(), HURRY_S if hurry else FRESH_S
        unknown: dict[str, tuple[ProbeKind, list[Pair]]] = {}
        for name, (ago_s, pairs) in knowledge.measured_ago(now).items():
            if name in used:
                known = LOOK if ago_s > LOOK_S else GLANCE
                kind = DOUBT if name in contradicted else known if name in estimates else USED
            elif ago_s > fresh_s:
                kind = USUAL
            else:
                continue
            unknown[name] = kind, [pair for pair in pairs if present.issuperset(pair)]
        for member, probe in self._probing.probes(unknown, knowledge.view(now), monotonic_s):
            yield Tell(member, probe)
