"""Training in rounds on simulated time.

    members' activities --declared compute--> begins of a round --model--> its ends --reports, arrivals--> controller
          ^                                                                  |                               |
          `--------------- the mean, the time <------------------------------'     the plan that all hold <--'

A round is simulated once everything that it depends on is known: when each member begins it, and the plan. Its
consequences are scheduled in the event queue, which runs until the first member goes on; nothing of the next round is
earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from math import inf

from testbed.plan import Plan
from testbed.protocol import Goodbye
from testbed.simulation.environment import Environment, EventSchedule, congestion_control
from testbed.simulation.fluid_model import FluidModel
from testbed.simulation.measurements import Measurements
from testbed.simulation.members import (
    NO_STEPS,
    CompletedRound,
    DeclaredCompute,
    FinishedRound,
    Learning,
    MemberProgress,
    StepTotals,
    learning_of,
)
from testbed.simulation.network import SimulatedNetwork
from testbed.simulation.recorder import RunRecorder
from testbed.simulation.round_model import BbrConnections, ChunkModel, RoundModel
from testbed.spec.experiment import Experiment
from testbed.workload import Workload

#: To hold a plan a member connects to its next hops: TCP's handshake, and a greeting there and back. The connections
#: are made side by side, so the longest round trip counts. Beside that the member's threads take HOLD_S seconds.
HANDSHAKE_TRIPS, HOLD_S = 2.0, 0.01

#: The most members that are simulated chunk by chunk: a round of 64 takes seconds.
MOST_BY_CHUNKS = 64


def simulate_rounds(
    experiment: Experiment,
    environment: Environment,
    schedule: EventSchedule,
    recorder: RunRecorder,
    gradients: bool,
    until_s: float = inf,
) -> float:
    """Simulate members that reduce in rounds, to their end or to `until_s`. Returns the duration of training in s."""
    model = model_of(experiment, environment.network)
    recorder.begin(experiment, model.name, gradients)
    controller, elements = environment.controller, experiment.spec.own_train.model_bytes // 4
    with learning_of(controller.spec.jobs, elements, gradients, lambda: controller.plan) as learning:
        return RoundSimulation(experiment, environment, schedule, model, learning, recorder).run(until_s)


def model_of(experiment: Experiment, network: SimulatedNetwork) -> RoundModel:
    """Return the model for an experiment's rounds: by chunks for at most MOST_BY_CHUNKS members, else fluid."""
    timeout_s = experiment.spec.sync.round_timeout
    if len(experiment.topology.workers) > MOST_BY_CHUNKS:
        return FluidModel(network, timeout_s)
    return ChunkModel(network, timeout_s, BbrConnections() if congestion_control(experiment) == "bbr" else None)


def hold_s(environment: Environment, member: str, plan: Plan) -> float:
    """Return the seconds that a member takes until it holds a plan."""
    state = environment.network.at(environment.queue.clocks.now_s)
    hops = plan.next_hops(member) - environment.controller.plan.next_hops(member)
    trips = [state.delay_s(member, peer) + state.delay_s(peer, member) for peer in hops]
    return HANDSHAKE_TRIPS * max(trips, default=0.0) + HOLD_S


class RoundSimulation:
    """Simulates the rounds of an experiment's members, with their steps in between."""

    def __init__(
        self,
        experiment: Experiment,
        environment: Environment,
        schedule: EventSchedule,
        model: RoundModel,
        learning: Learning,
        recorder: RunRecorder,
    ) -> None:
        jobs = environment.controller.spec.jobs
        # On networks too large for chunks members measure paths only if a controller plans by that.
        measure = isinstance(model, ChunkModel) or not experiment.spec.controller.hold
        self._schedule = schedule
        self._model = model
        self._environment = environment
        self._learning = learning
        self._recorder = recorder
        self._overlap = experiment.spec.sync.own.overlaps
        self._progress = {
            name: MemberProgress(name, DeclaredCompute(Workload.from_json(job.workload))) for name, job in jobs.items()
        }
        self._measurements = Measurements(environment, list(jobs), measure)
        environment.controller.connect(partial(hold_s, environment), self._measurements.probe)

    def run(self, until_s: float = inf) -> float:
        """Simulate all rounds, cut off at `until_s`, and return the seconds that training took.

        Returns:
            When the last member was done, in seconds after training began; `until_s` if members were cut off.

        Raises:
            RunFailed: a round cannot end.
        """
        queue, controller = self._environment.queue, self._environment.controller
        controller.begin()
        for number in count(1):
            activities = self._learning.next_activities()
            for name, progress in self._progress.items():
                for due in progress.advance(activities[name]):
                    queue.schedule(due.at_s, partial(self._report, name, due.rounds, due.steps))
            if not all(activity.requests_round for activity in activities.values()):
                break
            plan = controller.plan
            payload = self._learning.reduce(number, plan)
            began_s = {name: its.begins_s for name, its in self._progress.items()}
            done = self._model.simulate(plan, number, began_s, payload)
            for progress in self._progress.values():
                progress.add_round(FinishedRound(number, plan, done))
            self._measurements.add_round(done)
            self._schedule.complete_round(number, max(done.finished_s.values()))
            self._recorder.traffic.add_round(done)
            resume_s = [its.at_s for its in self._progress.values()] if self._overlap else done.finished_s.values()
            next_s = min(*resume_s, until_s)
            self._recorder.traffic.sample(next_s)
            queue.run_until(next_s)
            self._recorder.update(number, min(max(done.finished_s.values()), until_s))
            if next_s == until_s:
                return until_s
            self._learning.resume(CompletedRound(number, plan.epoch, plan.among_all(number)))
        for name, progress in self._progress.items():
            goodbye = Goodbye(name, progress.rounds, self._learning.digest(name), progress.metrics)
            queue.schedule(progress.at_s, partial(controller.receive, goodbye))
        ended_s = max(its.at_s for its in self._progress.values())
        queue.run_until(ended_s)
        self._recorder.traffic.sample()
        controller.finish()
        return ended_s

    def _report(self, name: str, rounds: Sequence[FinishedRound], steps: StepTotals) -> None:
        """Report rounds of a member, and the steps before the last of them."""
        for its in rounds:
            last = its is rounds[-1]
            self._measurements.report(name, its, steps if last else NO_STEPS, last)
