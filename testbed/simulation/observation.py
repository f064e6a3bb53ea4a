"""What members see of rounds and paths, and say to the controller at its time."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from testbed.protocol import Probe
from testbed.simulation.member import SimulatedMember
from testbed.simulation.probes import SimulatedProbes
from testbed.simulation.progress import RoundOver, StepsTaken
from testbed.simulation.round import SimulatedRound
from testbed.simulation.stage import Stage

#: As members do while a round is on for that long (sync/progress_reporter.py).
EACH_S = 0.25


class Observation:
    """That of members with these names, who may `measure` paths."""

    def __init__(self, stage: Stage, names: Sequence[str], measure: bool) -> None:
        self._stage = stage
        self._members = {name: SimulatedMember(name, stage.agenda.clocks, measure) for name in names}
        self._probes = SimulatedProbes(stage.underlay, stage.agenda.clocks)

    def probe(self, member: str, probe: Probe) -> None:
        """A member is told to find out what the path to another carries."""
        self._members[probe.peer].hears(member, self._probes.trains(member, probe, self._stage.agenda.clocks.now_s))

    def add(self, done: SimulatedRound) -> None:
        """A round has been simulated: what came of it is seen as it comes."""
        self._probes.add(done)
        for (source, target), sent in done.transfers.items():
            self._members[target].receives(source, sent)
        for member in self._members.values():
            if member.measures:
                self._enter_looks(member, done)

    def report(self, name: str, told: RoundOver, steps: StepsTaken, arrivals: bool) -> None:
        """A member tells of a round, and the steps before it; with what came in by now."""
        self._stage.controller.hear(self._members[name].report(told, steps, arrivals))

    def _enter_looks(self, member: SimulatedMember, done: SimulatedRound) -> None:
        """What it tells before a long round is over."""
        agenda, controller = self._stage.agenda, self._stage.controller
        first, last = done.began_s[member.name] / EACH_S, done.finished_s[member.name] / EACH_S
        for tick in range(floor(first) + 2, floor(last) + 1):
            agenda.enter(tick * EACH_S, lambda: controller.hear(member.arrived()))
