"""An experiment on simulated time.

    what members do --compute as declared--> begins of a round --model--> its ends --reports, arrivals--> controller
          ^                                                                |                                |
          `--------------- the mean, the time <----------------------------'     the plan that all hold <---'

A round is simulated once all is known that it depends on: when each member begins it, and the plan. What it leads to is
entered in the queue, which is played up to when the first member goes on; nothing of the next round is earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from math import inf

from testbed.plan import Plan
from testbed.protocol import Goodbye
from testbed.simulation.activity import MeanHeld
from testbed.simulation.compute import DeclaredMembers
from testbed.simulation.learning import Learning
from testbed.simulation.observation import Observation
from testbed.simulation.progress import NO_STEPS, MemberProgress, RoundOver, StepsTaken
from testbed.simulation.round_model import RoundModel
from testbed.simulation.script import SimulatedScript
from testbed.simulation.stage import Stage
from testbed.simulation.story import SimulatedStory
from testbed.simulation.traffic import Traffic

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
        members: DeclaredMembers,
        learning: Learning,
        story: SimulatedStory,
    ) -> None:
        self.script = script
        self.model = model
        self._stage = stage
        self._learning = learning
        self._story = story
        self._overlap = members.overlap
        self._traffic = Traffic(stage.queue.clocks, story.sampled)
        self._progress = {name: MemberProgress(name, its) for name, its in members.compute.items()}
        self._observation = Observation(stage, list(members.compute), members.measure)
        stage.controller.attend(partial(hold_s, stage), self._observation.probe)

    def run(self, until_s: float = inf) -> float:
        """Simulate all rounds, or those that begin before `until_s`, where the training is cut off.

        Returns:
            When the last member was done, in seconds after training began; `until_s` where members were cut off.

        Raises:
            RunFailed: a round can't end.
        """
        queue, controller = self._stage.queue, self._stage.controller
        controller.begin()
        for number in count(1):
            activities = self._learning.activities()
            for name, progress in self._progress.items():
                for told in progress.take(activities[name]):
                    queue.schedule(told.at_s, partial(self._report, name, told.rounds, told.steps))
            if not all(activity.asks for activity in activities.values()):
                break
            plan = controller.plan
            payload = self._learning.reduce(number, plan)
            began_s = {name: its.begins_s for name, its in self._progress.items()}
            done = self.model.simulate(plan, number, began_s, payload)
            for progress in self._progress.values():
                progress.over(number, plan, done)
            self._observation.add(done)
            self.script.round_over(number, max(done.finished_s.values()))
            self._traffic.add(done)
            goes_on_s = [its.at_s for its in self._progress.values()] if self._overlap else done.finished_s.values()
            next_s = min(*goes_on_s, until_s)
            self._traffic.sample(next_s)
            queue.run_until(next_s)
            self._story.watch(number, min(max(done.finished_s.values()), until_s))
            if next_s == until_s:
                return until_s
            self._learning.go_on(MeanHeld(number, plan.epoch, plan.among_all(number)))
        for name, progress in self._progress.items():
            goodbye = Goodbye(name, progress.rounds, self._learning.digest(name), progress.metrics)
            queue.schedule(progress.at_s, partial(controller.hear, goodbye))
        ended_s = max(its.at_s for its in self._progress.values())
        queue.run_until(ended_s)
        self._traffic.sample()
        controller.finish()
        return ended_s

    def _report(self, name: str, rounds: Sequence[RoundOver], steps: StepsTaken) -> None:
        """A member tells of rounds, and of the steps before the last of them."""
        for its in rounds:
            last = its is rounds[-1]
            self._observation.report(name, its, steps if last else NO_STEPS, last)


def hold_s(stage: Stage, member: str, plan: Plan) -> float:
    """Seconds until a member of a stage holds a plan."""
    state = stage.network.at(stage.queue.clocks.now_s)
    hops = plan.next_hops(member) - stage.controller.plan.next_hops(member)
    trips = [state.delay_s(member, peer) + state.delay_s(peer, member) for peer in hops]
    return HANDSHAKE_TRIPS * max(trips, default=0.0) + HOLD_S
