"""What members' transfers say of the network, and probes of what they do not."""

from __future__ import annotations

from testbed.controller.actions import Actions, Tell
from testbed.controller.allreduce.group_state import GroupState
from testbed.controller.allreduce.round_log import ReportedRound
from testbed.controller.knowledge.explore import Explorer
from testbed.controller.knowledge.knowledge import FRESH_S
from testbed.controller.replanning.decision_log import DecisionLog
from testbed.protocol import Arrived

#: A train is told when it is over, and what it is held against came to others up to so much later.
STRAGGLES_S = 0.3

#: Seconds after which what was measured is probed again where there is a hurry.
HURRY_S = 1.0


class NetworkMonitor:
    """Has the group's knowledge of links follow each round, and while one takes long each look at it.

    `measured_s` is when links were last measured in the midst of a round (Unix time).
    """

    def __init__(self, group: GroupState, log: DecisionLog) -> None:
        self.measured_s = 0.0
        self._group = group
        self._log = log
        self._explorer = Explorer()

    def redeclare(self) -> None:
        """Another network is declared."""
        self._explorer.redeclare()

    def round_over(self, done: ReportedRound, now: float) -> bool:
        """Measure links by a round that is over; whether one fell in it."""
        knowledge = self._group.knowledge
        knowledge.observe(done.samples(), done.arrivals(), now)
        fell = bool(knowledge.fell(now))
        knowledge.round_over(now)
        knowledge.clock(self._group.speeds(done.rates()))
        self._log.estimated(now, knowledge.estimates(now))
        return fell

    def arrived(self, arrived: Arrived, now: float) -> bool:
        """Take what came in so far in a round that takes long. Once all who are there have said so, links are
        measured; whether they were now."""
        group = self._group
        group.rounds.hear(arrived.member, now)
        group.knowledge.take({(peer, arrived.member): trains for peer, trains in arrived.arrivals.items()})
        heard_s = group.rounds.heard_s(group.membership.present)
        if heard_s <= self.measured_s:
            return False
        self.measured_s = now
        group.knowledge.measure(heard_s - STRAGGLES_S)
        self._log.estimated(now, group.knowledge.estimates(now))
        return True

    def probes(self, now: float, hurry: bool = False) -> Actions:
        """Have members probe what is not known well, if there will be another plan to profit from it. There is a
        `hurry` where something is wrong, and it is not known what."""
        group = self._group
        if group.planning.hold or group.rounds_left < group.planning.dwell_rounds:
            return
        present = group.membership.present
        unknown = {
            name: [pair for pair in pairs if present.issuperset(pair)]
            for name, pairs in group.knowledge.unknown(now, HURRY_S if hurry else FRESH_S).items()
        }
        probes = self._explorer.probes(unknown, group.knowledge.view(now), group.clocks.monotonic())
        for member, probe in probes.items():
            yield Tell(member, probe)
