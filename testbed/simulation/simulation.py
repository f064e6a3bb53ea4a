"""An experiment on simulated time.

    begins of a round --model--> its ends --members--> reports, arrivals --agenda--> controller
          ^                                                                               |
          `------- ends, computing as declared, the plan that all hold by then <----------'

A round is simulated once all is known that it depends on: when each member begins it, and the plan. What it leads to is
entered in the agenda, which is played up to when the first member had its mean; nothing of the next round is earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import floor
from typing import Any

from testbed.plan import Plan
from testbed.protocol import Goodbye, Probe
from testbed.run.errors import RunFailed
from testbed.simulation.compute import Computed, DeclaredCompute
from testbed.simulation.learning import Learning
from testbed.simulation.member import SimulatedMember
from testbed.simulation.probes import SimulatedProbes
from testbed.simulation.round import RoundModel, SimulatedRound
from testbed.simulation.script import SimulatedScript
from testbed.simulation.stage import Stage
from testbed.simulation.story import SimulatedStory
from testbed.simulation.traffic import Traffic

#: As members do while a round is on for that long (sync/meanwhile).
EACH_S = 0.5

#: To hold a plan a member opens connections to its next hops: TCP's handshake, and a greeting there and back, which
#: wait for each other no longer than for the longest of them. Beside that its threads take so long.
HANDSHAKE_TRIPS, HOLD_S = 2.0, 0.01


class Simulation:
    """The rounds of a stage's members, who compute as declared and learn what there is to learn."""

    def __init__(
        self,
        stage: Stage,
        script: SimulatedScript,
        model: RoundModel,
        compute: Mapping[str, DeclaredCompute],
        learning: Learning,
        story: SimulatedStory,
        measures: bool,
    ) -> None:
        """`measures`: whether members tell what they see of paths."""
        self.script = script
        self.model = model
        self._stage = stage
        self._compute = compute
        self._learning = learning
        self._story = story
        self._traffic = Traffic(stage.agenda.clocks, story.sampled)
        self._members = {name: SimulatedMember(name, stage.agenda.clocks, measures) for name in compute}
        self._probes = SimulatedProbes(stage.underlay)
        stage.controller.attend(self.hold_s, self.probe)

    def run(self, rounds: int) -> float:
        """All rounds; when the last was over, in seconds after training began. RunFailed when one can't end."""
        agenda, controller = self._stage.agenda, self._stage.controller
        controller.begin()
        over_s = dict.fromkeys(self._members, 0.0)
        for number in range(1, rounds + 1):
            computed = {name: its.next(over_s[name]) for name, its in self._compute.items()}
            plan = controller.plan
            if plan.groups and plan.period > 1:
                raise RunFailed(f"round {number}: the plan of {plan.policy} has groups, and is not simulated")
            done = self.model.round(plan, {name: over_s[name] + computed[name].seconds for name in over_s})
            over_s = dict(done.finished_s)
            self._enter(number, rounds, plan, done, computed)
            self.script.round_over(number, max(over_s.values()))
            self._traffic.add(done)
            self._traffic.sample(min(over_s.values()))
            agenda.play(min(over_s.values()))
            self._story.watch(number, max(over_s.values()))
        ended_s = max(over_s.values())
        agenda.play(ended_s)
        self._traffic.sample()
        controller.finish()
        return ended_s

    def hold_s(self, member: str, plan: Plan) -> float:
        """Seconds until a member holds a plan."""
        state = self._stage.underlay.at(self._stage.agenda.clocks.now_s)
        hops = plan.next_hops(member) - self._stage.controller.plan.next_hops(member)
        trips = [state.delay_s(member, peer) + state.delay_s(peer, member) for peer in hops]
        return HANDSHAKE_TRIPS * max(trips, default=0.0) + HOLD_S

    def probe(self, member: str, probe: Probe) -> None:
        """A member is told to find out what the path to another carries."""
        self._members[probe.peer].receives(member, self._probes.sent(member, probe, self._stage.agenda.clocks.now_s))

    def _enter(
        self, number: int, rounds: int, plan: Plan, done: SimulatedRound, computed: Mapping[str, Computed]
    ) -> None:
        """What members say of a round, each at its time."""
        agenda, controller = self._stage.agenda, self._stage.controller
        self._probes.add(done)
        learned = self._learning.round(number)
        for (source, target), sent in done.transfers.items():
            self._members[target].receives(source, sent)
        for name, member in self._members.items():
            if member.measures:
                self._enter_looks(member, done)
            metrics: dict[str, Any] = dict(learned.get(name, {}))
            if (rate := computed[name].samples_per_s) is not None:
                metrics["samples_per_s"] = rate
            told = partial(self._report, member, number, plan, done, computed[name].seconds, metrics)
            agenda.enter(done.finished_s[name], told)
            if number == rounds:
                goodbye = Goodbye(name, rounds, self._learning.digest(name))
                agenda.enter(done.finished_s[name], partial(controller.hear, goodbye))

    def _enter_looks(self, member: SimulatedMember, done: SimulatedRound) -> None:
        """What it tells before a long round is over."""
        agenda, controller = self._stage.agenda, self._stage.controller
        first, last = done.began_s[member.name] / EACH_S, done.finished_s[member.name] / EACH_S
        for tick in range(floor(first) + 2, floor(last) + 1):
            agenda.enter(tick * EACH_S, lambda: controller.hear(member.arrived()))

    def _report(
        self,
        member: SimulatedMember,
        number: int,
        plan: Plan,
        done: SimulatedRound,
        paced_s: float,
        metrics: Mapping[str, float | None],
    ) -> None:
        self._stage.controller.hear(member.report(number, plan, done, paced_s, metrics))
