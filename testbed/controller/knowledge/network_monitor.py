"""What members' transfers say of the network, and probes of what they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from testbed.controller.knowledge.explore import Explorer
from testbed.controller.knowledge.knowledge import FRESH_S, Knowledge
from testbed.controller.model.actions import Actions, Tell
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.round_log import ReportedRound, RoundLog
from testbed.protocol import Arrived
from testbed.telemetry.estimate import Estimate

#: A train is told when it is over, and what it is held against came to others up to so much later.
STRAGGLES_S = 0.3

#: Seconds after which what was measured is probed again where there is a hurry.
HURRY_S = 1.0


class NetworkMonitor:
    """Measures links by each round, and in the midst of rounds that take long; probes what no transfer measures.

    Attributes:
        measured_s: When links were last measured in the midst of a round, in Unix time.

    Args:
        knowledge: What is known of the network.
        rounds: The rounds of the members.
        membership: Which members are there.
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
        self._explorer = Explorer()

    def redeclare(self) -> None:
        """Forget what was probed: another network is declared."""
        self._explorer.redeclare()

    def round_over(self, done: ReportedRound, speeds: Mapping[str, float], now: float) -> bool:
        """Measure links by a round that is over. Returns whether a link fell in it.

        Args:
            done: The round.
            speeds: The members' samples per second, as parts of what they declare.
            now: Unix time in seconds.
        """
        self._knowledge.observe(done.samples(), done.arrivals(), now)
        fell = bool(self._knowledge.fell(now))
        self._knowledge.round_over(now)
        self._knowledge.clock(dict(speeds))
        self._estimated(now, self._knowledge.estimates(now))
        return fell

    def arrived(self, arrived: Arrived, now: float) -> bool:
        """Take what a member has received so far in a round that takes long.

        Links are measured once all members that are there have said so. Returns whether they were measured now.
        """
        self._rounds.hear(arrived.member, now)
        self._knowledge.take({(peer, arrived.member): trains for peer, trains in arrived.arrivals.items()})
        heard_s = self._rounds.heard_s(self._membership.present)
        if heard_s <= self.measured_s:
            return False
        self.measured_s = now
        self._knowledge.measure(heard_s - STRAGGLES_S)
        self._estimated(now, self._knowledge.estimates(now))
        return True

    def probes(self, now: float, monotonic_s: float, hurry: bool = False) -> Actions:
        """Have members probe what is not known well.

        Args:
            now: Unix time in seconds.
            monotonic_s: The same moment in seconds of the monotonic clock.
            hurry: True where something is wrong, and it is not known what.
        """
        present = self._membership.present
        unknown = {
            name: [pair for pair in pairs if present.issuperset(pair)]
            for name, pairs in self._knowledge.unknown(now, HURRY_S if hurry else FRESH_S).items()
        }
        for member, probe in self._explorer.probes(unknown, self._knowledge.view(now), monotonic_s).items():
            yield Tell(member, probe)
