"""Training in rounds on simulated time.

    members' activities --declared compute--> begins of a round --model--> its ends --reports, arrivals--> controller
          ^                                                                  |                               |
          `--------------- the mean, the time <------------------------------'     the plan that all hold <--'

A round is simulated once everything that it depends on is known: when each member begins it, and the plan. Its
consequences are scheduled in the event queue, which runs until the first member goes on; nothing of the next round is
earlier.
"""

from __future__ import annotations

from functools import partial
from itertools import count

from testbed.plan import Plan
from testbed.protocol import Goodbye
from testbed.simulation.environment import Environment, EventSchedule, congestion_control
from testbed.simulation.fluid_model import FluidModel
from testbed.simulation.measurements import Measurements
from testbed.simulation.members import (
    CompletedRound,
    DeclaredCompute,
    FinishedRound,
    MemberProgress,
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
    until_s: float,
) -> float:
    """Simulate members that reduce in rounds, to their end or to `until_s`.

    Returns:
        When the last member was done, in seconds after training began; `until_s` if members were cut off.

    Raises:
        RunFailed: a round cannot end.
    """
    model = model_of(experiment, environment.network)
    recorder.begin(experiment, model.name, gradients)
    queue, controller = environment.queue, environment.controller
    jobs, elements = controller.spec.jobs, experiment.spec.own_train.model_bytes // 4
    members = {
        name: MemberProgress(name, DeclaredCompute(Workload.from_json(job.workload))) for name, job in jobs.items()
    }
    # On networks too large for chunks members measure paths only if a controller plans by that.
    measure = isinstance(model, ChunkModel) or not experiment.spec.controller.hold
    measurements = Measurements(environment, list(jobs), measure)
    controller.connect(partial(hold_s, environment), measurements.probe)
    with learning_of(jobs, elements, gradients, lambda: controller.plan) as learning:
        controller.begin()
        for number in count(1):
            activities = learning.next_activities()
            for name, member in members.items():
                for due in member.advance(activities[name]):
                    queue.schedule(due.at_s, partial(measurements.report, name, due))
            if not all(activity.requests_round for activity in activities.values()):
                break
            plan = controller.plan
            payload = learning.reduce(number, plan)
            done = model.simulate(plan, number, {name: its.begins_s for name, its in members.items()}, payload)
            for member in members.values():
                member.add_round(FinishedRound(number, plan, done))
            measurements.add_round(done)
            over_s = max(done.finished_s.values())
            schedule.complete_round(number, over_s)
            recorder.traffic.add_round(done)
            overlap = experiment.spec.sync.own.overlaps
            resume_s = [its.at_s for its in members.values()] if overlap else done.finished_s.values()
            next_s = min(*resume_s, until_s)
            recorder.traffic.sample(next_s)
            queue.run_until(next_s)
            recorder.update(number, min(over_s, until_s))
            if next_s == until_s:
                return until_s
            learning.resume(CompletedRound(number, plan.epoch, plan.among_all(number)))
        for name, member in members.items():
            goodbye = Goodbye(name, member.rounds, learning.digest(name), member.metrics)
            queue.schedule(member.at_s, partial(controller.receive, goodbye))
    ended_s = max(its.at_s for its in members.values())
    queue.run_until(ended_s)
    recorder.traffic.sample()
    controller.finish()
    return ended_s


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
