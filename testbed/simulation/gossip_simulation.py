"""Members that gossip, on simulated time.

Each member runs the program that it runs over sockets, and nothing but messages holds the members together. The effects
of a program are carried out here:

    Send          the message, packed as over sockets --MessageNetwork--> its receiver
    LocalCompute  a step, computed on a thread meanwhile and done when its declared time is over
    Until         the program goes on as soon as the condition holds
    Advance       a report to the controller
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from torch import Tensor

from testbed.planning import Pair
from testbed.protocol import Goodbye, Job, NodeConfiguration, Report
from testbed.run.errors import RunFailed
from testbed.run.watchdog import longest_quiet_s
from testbed.simulation.environment import Environment, EventSchedule
from testbed.simulation.event_queue import EventQueue
from testbed.simulation.member_training import MOST_ELEMENTS, MakeLearner, real_learners, small_learner
from testbed.simulation.members import DeclaredCompute
from testbed.simulation.message_network import MessageNetwork, QueuedMessage
from testbed.simulation.network import NetworkState
from testbed.simulation.recorder import SAMPLE_S, RunRecorder
from testbed.simulation.round_model import Transfer
from testbed.spec.experiment import Experiment
from testbed.sync import flat
from testbed.sync.codecs import PLAIN, by_name
from testbed.sync.gossip.effects import Advance, Effect, LocalCompute, Participant, Send, Step, Steps, Until
from testbed.sync.gossip.iteration_reporter import StepFigures
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import Done, MessageCodec, WireMessage
from testbed.worker.gossip import PacedSteps, participant_of
from testbed.worker.learner import Learner
from testbed.workload import Workload

#: What a member waits for after its own program. The wait may take as long as the slowest partner does.
END = "its partners' end"


def simulate_gossip(
    experiment: Experiment,
    environment: Environment,
    schedule: EventSchedule,
    recorder: RunRecorder,
    gradients: bool,
    until_s: float,
) -> float:
    """Simulate members that gossip, to their end or to `until_s`. Returns the duration of training in seconds."""
    recorder.begin(experiment, "messages", gradients)
    jobs, clock = environment.controller.spec.jobs, environment.queue.clocks.monotonic
    elements = experiment.spec.own_train.model_bytes // 4
    larger = None if gradients else elements / min(elements, MOST_ELEMENTS)
    learners: AbstractContextManager[MakeLearner] = (
        real_learners() if gradients else nullcontext(lambda work: small_learner(work, elements))
    )
    with learners as make:
        setups = {
            name: GossipSetup.of(name, jobs, make(Workload.from_json(job.workload)), larger, clock)
            for name, job in jobs.items()
        }
        return GossipSimulation(environment, schedule, setups, recorder, longest_quiet_s(experiment)).run(until_s)


@dataclass(frozen=True, slots=True)
class GossipSetup:
    """A member's participant, model, declared compute and message codec."""

    participant: Participant
    node: NodeConfiguration
    model: Learner
    steps: PacedSteps
    compute: DeclaredCompute
    codec: MessageCodec
    #: The longest wait for an iteration of the others, in seconds.
    timeout_s: float
    #: The size of the declared model over that of `model`, which learns nothing; None if the member learns for real.
    larger: float | None

    @classmethod
    def of(
        cls, name: str, jobs: Mapping[str, Job], model: Learner, larger: float | None, clock: Callable[[], float]
    ) -> GossipSetup:
        """Return the setup of a member by its job.

        `model` is the member's own, or a small stand-in that learns nothing. `larger` is the size of the declared model
        over the stand-in's; None if the member learns for real. `clock` returns the current time in seconds.
        """
        job, members = jobs[name], tuple(jobs)
        work, node = Workload.from_json(job.workload), NodeConfiguration.from_json(job.assignment)
        # The simulation decides how long steps take.
        steps = PacedSteps(model, replace(work, step_seconds=0.0), node)
        participant = participant_of(name, members, job, model, clock)
        codec = MessageCodec(members, len(participant.model), by_name(node.rules.get("codec", PLAIN.name)))
        return cls(participant, node, model, steps, DeclaredCompute(work), codec, job.round_timeout_s, larger)

    def size(self, packed: WireMessage) -> float:
        """Return the bytes that a message takes on the network; a tensor's are scaled by `larger`, if that is set."""
        return len(packed.body) * (self.larger or 1.0 if packed.large else 1.0)

    def end(self) -> tuple[str, dict[str, float]]:
        """Return the SHA-256 of the final parameters and their metrics over the test set."""
        if self.larger is not None:
            return "", {}
        flat.scatter(self.participant.model, self.model.parameters)
        return self.model.digest(), self.model.evaluate()


class GossipSimulation:
    """Simulates the iterations of an experiment's members, which gossip."""

    def __init__(
        self,
        environment: Environment,
        schedule: EventSchedule,
        setups: Mapping[str, GossipSetup],
        recorder: RunRecorder,
        quiet_s: float,
    ) -> None:
        """Make a simulation that fails once no member has reported or ended for `quiet_s`, as the watchdog does."""
        queue = environment.queue
        self.network = MessageNetwork(queue, environment.network, self._is_stale, self._count)
        self.members = {name: GossipMember(setup, queue, self) for name, setup in setups.items()}
        self._environment = environment
        self._schedule = schedule
        self._recorder = recorder
        self._quiet_s = quiet_s
        self._progressed_s = 0.0
        self._lowest = 0
        self._ended: list[str] = []

    def run(self, until_s: float) -> float:
        """Simulate all iterations, cut off at `until_s`, and return the seconds that training took.

        Returns:
            When the last member was done, in seconds after training began; `until_s` if members were cut off.

        Raises:
            RunFailed: an iteration, or a wait for the partners' end, cannot end.
        """
        queue, controller = self._environment.queue, self._environment.controller
        controller.begin()
        self._schedule.on_change = self.network.refresh
        self._sample()
        for member in self.members.values():
            queue.schedule(0.0, member.resume)
        try:
            while len(self._ended) < len(self.members) and queue.next_s <= until_s:
                queue.run_next()
        finally:
            for member in self.members.values():
                member.close()
        cut_off = len(self._ended) < len(self.members)
        ended_s = until_s if cut_off else queue.clocks.now_s
        queue.run_until(ended_s)
        self._recorder.update(self._lowest, ended_s)
        self._recorder.traffic.sample(until_s if cut_off else inf)
        if not cut_off:
            controller.finish()
        return ended_s

    def receive(self, report: Report) -> None:
        """Pass on a member's report. A round's events are scheduled once all members have left that iteration."""
        self._progressed_s = self._environment.queue.clocks.now_s
        self._environment.controller.receive(report)
        lowest = min(member.iteration for member in self.members.values())
        for number in range(self._lowest + 1, lowest + 1):
            self._schedule.complete_round(number, self._environment.queue.clocks.now_s)
        self._lowest = max(self._lowest, lowest)

    def end(self, name: str, setup: GossipSetup) -> None:
        """Say goodbye for a member whose program has ended."""
        self._progressed_s = self._environment.queue.clocks.now_s
        self._ended.append(name)
        controller = self._environment.controller
        controller.receive(Goodbye(name, controller.spec.rounds, *setup.end()))

    def _is_stale(self, source: str, target: str, message: Message, later: Sequence[Message]) -> bool:
        return self.members[source].participant.stale(target, message, later)

    def _count(self, pair: Pair, sent: Transfer, network: NetworkState) -> None:
        self._recorder.traffic.add(pair, (sent,), network)

    def _sample(self) -> None:
        """Record the links' traffic and the progress, now and once a second from now on.

        Raises:
            RunFailed: there was no progress for too long.
        """
        now_s = self._environment.queue.clocks.now_s
        if now_s - self._progressed_s >= self._quiet_s:
            missing = sorted(self.members.keys() - set(self._ended))
            raise RunFailed(
                f"training made no progress for {self._quiet_s:.0f} s after round {self._lowest} of "
                f"{self._environment.controller.spec.rounds}; not finished: {', '.join(missing)}"
            )
        self._recorder.traffic.sample(now_s)
        self._recorder.update(self._lowest, now_s)
        self._environment.queue.schedule(now_s + SAMPLE_S, self._sample)


@dataclass(slots=True)
class IterationTally:
    """A member's steps, traffic and waits since its last report."""

    paced_s: float = 0.0
    steps: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    #: Seconds waited, by the peer whose message ended the wait.
    waited: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, float | None] = field(default_factory=dict)


class GossipMember:
    """Runs one member's program."""

    def __init__(self, setup: GossipSetup, queue: EventQueue, simulation: GossipSimulation) -> None:
        self.participant = setup.participant
        self.iteration = 0
        self._name = setup.participant.name
        self._setup = setup
        setup.steps.entered = lambda: self.iteration
        self._queue = queue
        self._simulation = simulation
        self._program = self._whole_program()
        self._wait: tuple[Until, float] | None = None  # what the program waits for, and since when
        self._done: set[str] = set()
        self._tally = IterationTally()
        self._entered_s = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}: steps")
        self._free_s = 0.0  # when the last step is done

    def resume(self) -> None:
        """Run the member's program to its next wait that is not over, or to its end; the first call begins it."""
        answer: Step | None = None
        try:
            while True:
                effect = self._program.send(answer)
                if isinstance(effect, Until) and not effect.condition():
                    self._begin_wait(effect)
                    return
                answer = self._carry_out(effect)
        except StopIteration:
            self._thread.shutdown()  # a last step that nobody waits for changes the model, too
            self._simulation.end(self._name, self._setup)

    def close(self) -> None:
        """End the member's program: it takes no more steps."""
        self._thread.shutdown(cancel_futures=True)

    def _whole_program(self) -> Steps[None]:
        """Yield the effects of the program. After it the member answers until its partners' programs have ended."""
        partners = set(self._setup.node.partners)
        yield from self.participant.program()
        for partner in sorted(partners):
            yield Send(partner, Done())
        yield Until(lambda: self._done >= partners, END)

    def _carry_out(self, effect: Effect) -> Step | None:
        match effect:
            case Send() as send:
                self._send(send)
            case LocalCompute(parameters, iteration):
                return self._begin_step(parameters, iteration)
            case Advance(iteration):
                self._advance(iteration)
        return None

    # Waiting

    def _begin_wait(self, until: Until) -> None:
        self._wait = wait = until, self._queue.clocks.now_s
        if until.awaited != END:
            timeout_s = self._setup.timeout_s * self.participant.patience
            self._queue.schedule(wait[1] + timeout_s, partial(self._fail_if_waiting, wait, timeout_s))

    def _fail_if_waiting(self, wait: tuple[Until, float], timeout_s: float) -> None:
        if wait is self._wait:
            at = f"{self._name}, iteration {self.iteration}"
            raise RunFailed(f"{at}: waited {timeout_s:g} s for {wait[0].awaited}")

    def _look(self, sender: str = "") -> None:
        """Resume the program if its wait is over, by a message of `sender` or by the member's own doing."""
        if self._wait is not None and self._wait[0].condition():
            (_, since_s), self._wait = self._wait, None
            if sender:
                self._tally.waited[sender] += self._queue.clocks.now_s - since_s  # type: ignore[assignment]
            self.resume()

    # Messages

    def _send(self, send: Send) -> None:
        if send.to == self._name:  # a reminder
            remind = partial(self._receive, self._name, send.message)
            self._queue.schedule(self._queue.clocks.now_s + send.after_s, remind)
            return
        packed = self._setup.codec.pack(send.message)
        pair, size = (self._name, send.to), self._setup.size(packed)
        arrive = partial(self._simulation.members[send.to].arrive, self._name, packed)
        self._tally.sent_bytes += size
        if packed.large:
            self._simulation.network.send(pair, QueuedMessage(send.message, size, arrive))
        else:
            self._simulation.network.send_small(pair, arrive)

    def arrive(self, sender: str, packed: WireMessage) -> None:
        """Handle a message that arrived. Its body is copied: the memory that it was sent from is the sender's."""
        message = self._setup.codec.unpack(packed._replace(body=memoryview(bytearray(packed.body))))
        if isinstance(message, Done):
            self._done.add(sender)
            self._look(sender)
            return
        self._tally.received_bytes += self._setup.size(packed)
        self._receive(sender, message)

    def _receive(self, sender: str, message: Message) -> None:
        for answer in self.participant.receive(sender, message):
            self._send(answer)
        self._look("" if sender == self._name else sender)

    # Steps

    def _begin_step(self, parameters: Tensor, iteration: int) -> Step:
        """Begin the step of an iteration. Steps follow one another, as on a processor of the member's own."""
        step, steps = Step(), self._setup.steps
        begins_s = max(self._free_s, self._queue.clocks.now_s)
        seconds = self._setup.compute.step_s(iteration + 1, begins_s)
        self._free_s = begins_s + seconds
        computed = self._thread.submit(lambda: (steps(parameters, iteration), steps.figures()))
        self._queue.schedule(self._free_s, partial(self._end_step, step, computed, seconds))
        return step

    def _end_step(self, step: Step, computed: Future[tuple[Tensor, StepFigures]], seconds: float) -> None:
        change, figures = computed.result()
        step.finish(change)
        self._tally.paced_s += seconds
        self._tally.steps += 1
        self._tally.metrics |= figures.metrics
        self._look()

    # Reports

    def _advance(self, iteration: int) -> None:
        """Enter an iteration. Reports it with the times of the one before, as an IterationReporter does live."""
        self.iteration = iteration
        if iteration > self._setup.node.first:
            tally, self._tally = self._tally, IterationTally()
            self._simulation.receive(self._report(iteration, tally))
        self._entered_s = self._queue.clocks.now_s

    def _report(self, iteration: int, tally: IterationTally) -> Report:
        clocks = self._queue.clocks
        steps = {"steps": tally.steps} if tally.steps else {}
        return Report(
            member=self._name,
            round=iteration,
            epoch=0,
            started_s=clocks.zero_s + self._entered_s,
            finished_s=clocks.unix(),
            compute_s=0.0,
            paced_s=tally.paced_s,
            sent_bytes=round(tally.sent_bytes),
            received_bytes=round(tally.received_bytes),
            lost=0,
            duplicated=0,
            waited=dict(tally.waited),
            metrics={**tally.metrics, **steps, **self.participant.metrics},
        )
