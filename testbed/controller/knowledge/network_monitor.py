"""Measurement of the network by members' transfers, and by probes of the links that no transfer uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from testbed.controller.knowledge.knowledge import FRESH_S, Knowledge
from testbed.controller.knowledge.probing import ProbeScheduler
from testbed.controller.model.actions import Actions, Tell
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.round_log import ReportedRound, RoundLog
from testbed.plan import Plan
from testbed.protocol import Arrived
from testbed.telemetry.estimate import Estimate

#: Seconds by which measuring lags behind the newest messages. A member reports a train when the train is over, and the
#: trains to other members that it is compared with arrive up to this much later.
STRAGGLES_S = 0.3

#: Seconds after which a measured link is probed again while a round is slower than expected.
HURRY_S = 1.0

#: Seconds after which a measured link of the plan in force is probed again.
USED_FRESH_S = 1.0


class NetworkMonitor:
    """Measures links after each round and during long rounds, and has members probe links that no transfer measures.

    Attributes:
        measured_s: When links were last measured during a round (Unix time in seconds).

    Args:
        knowledge: The knowledge of the network, which the measurements go into.
        rounds: The members' rounds, which are only read.
        membership: The present members, which are only read.
        estimated: Called with the time and the estimates after each measurement.
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

        Args:
            done: The round.
            speeds: The members' samples per second as parts of their declared ones.
            now: Unix time in seconds.

        Returns:
            Whether a link fell during the round.
        """
        self._knowledge.observe(done.samples(), done.arrivals(), now)
        fell = bool(self._knowledge.fell(now))
        self._knowledge.round_over(now)
        self._knowledge.add_speeds(dict(speeds))
        self._estimated(now, self._knowledge.estimates(now))
        return fell

    def arrived(self, arrived: Arrived, now: float) -> bool:
        """Take a member's trains so far in a long round, and measure links once all present members sent theirs.

        Args:
            arrived: The member's message.
            now: Unix time in seconds.

        Returns:
            Whether links were measured now.
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
