"""Members that reduce in rounds: what they do between rounds, and at which moments.

    Learning --Activity: steps, waits, the next round--> MemberProgress --> when the member begins it; its reports

A member that computes during a round begins its next round once the previous one is over for it. Real training is in
member_training, which loads PyTorch; members whose rounds are known without a model are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from testbed.plan import Plan
from testbed.protocol import FragmentDrift, Job, MeanSlice
from testbed.simulation.round_model import Payload, SimulatedRound, coded_payload
from testbed.worker.pace import Slowness
from testbed.workload import Workload


class DeclaredCompute:
    """The declared durations of a member's steps, with the slowdowns that a worker would draw."""

    def __init__(self, work: Workload) -> None:
        #: Samples of a step.
        self.batch = work.batch
        self._work = work
        self._slowness = Slowness(work)
        self._taken = 0

    def next_step_s(self, at_s: float) -> float:
        """Return the duration of the next step, which begins `at_s` seconds after training began."""
        self._taken += 1
        return self.step_s(self._taken, at_s)

    def step_s(self, number: int, at_s: float) -> float:
        """Return the duration of step `number`, which begins `at_s` seconds after training began."""
        return self._work.step_seconds * self._slowness.factor(number, at_s)


@dataclass(frozen=True, slots=True)
class ComputeStep:
    """The member computes a step."""


@dataclass(frozen=True, slots=True)
class AwaitRound:
    """The member waits until the round is over for it."""

    round: int


@dataclass(frozen=True, slots=True)
class EndStep:
    """The member ends a step. With its metrics and drift the member reports the rounds that are over by then."""

    metrics: Mapping[str, float]
    drift: tuple[FragmentDrift, ...] = ()


Operation = ComputeStep | AwaitRound | EndStep


@dataclass(frozen=True, slots=True)
class Activity:
    """A member's operations until it requests its next round, or until its end."""

    operations: tuple[Operation, ...]
    #: Whether a round follows.
    requests_round: bool = True
    #: Whether the member computes during that round, instead of waiting for its mean.
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class CompletedRound:
    """The result of a round at a member, as `allreduce` returns it."""

    round: int
    epoch: int
    #: Whether the mean is of all members, instead of a group.
    whole: bool
    #: The members of each part of the mean: simulated members are never lost, so that there are no parts.
    slices: tuple[MeanSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A round that was simulated, with its number and its plan."""

    number: int
    plan: Plan
    outcome: SimulatedRound


@dataclass(frozen=True, slots=True)
class StepTotals:
    """The part of a report about the steps before a round."""

    seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    drift: tuple[FragmentDrift, ...] = ()


NO_STEPS = StepTotals()


@dataclass(frozen=True, slots=True)
class DueReport:
    """A member's report of rounds, and of the steps before the last of them."""

    #: Seconds after training began.
    at_s: float
    rounds: tuple[FinishedRound, ...]
    steps: StepTotals


class MemberProgress:
    """A member's progress. Its operations take simulated time, and it reports finished rounds when its steps end."""

    def __init__(self, name: str, compute: DeclaredCompute) -> None:
        #: The member's own moment, and when it begins the round that it requested, in seconds after training began.
        self.at_s = 0.0
        self.begins_s = 0.0
        #: The number of the last simulated round.
        self.rounds = 0
        #: The metrics of the last step.
        self.metrics: Mapping[str, float] = {}
        self._name = name
        self._compute = compute
        self._over_s: list[float] = [0.0]
        self._unreported: list[FinishedRound] = []
        self._seconds = 0.0
        self._steps = 0
        self._drift: tuple[FragmentDrift, ...] = ()

    def add_round(self, finished: FinishedRound) -> None:
        """Record the outcome of the round that the member requested."""
        self.rounds = finished.number
        self._over_s.append(finished.outcome.finished_s[self._name])
        self._unreported.append(finished)

    def advance(self, activity: Activity) -> Iterator[DueReport]:
        """Carry out an activity. Yields the reports that the member makes meanwhile."""
        for operation in activity.operations:
            match operation:
                case ComputeStep():
                    seconds = self._compute.next_step_s(self.at_s)
                    self.at_s += seconds
                    self._seconds += seconds
                    self._steps += 1
                case AwaitRound(round=number):
                    self.at_s = max(self.at_s, self._over_s[number])
                case EndStep(metrics, drift):
                    self.metrics = metrics
                    self._drift += drift
                    yield from self._report(0, self._totals(metrics))
        if activity.requests_round:
            yield from self._report(1 if activity.asynchronous else 0, NO_STEPS)
            self.begins_s = max(self.at_s, self._over_s[-1])
        else:
            self.at_s = max(self.at_s, self._over_s[-1])
            yield from self._report(0, NO_STEPS)

    def _totals(self, metrics: Mapping[str, float]) -> StepTotals:
        rate = {"samples_per_s": self._compute.batch * self._steps / self._seconds} if self._seconds else {}
        return StepTotals(self._seconds, {**metrics, **rate}, self._drift)

    def _report(self, keep: int, steps: StepTotals) -> Iterator[DueReport]:
        """Yield a report of all rounds that are over, except for the newest `keep`."""
        over = [its for its in self._unreported if its.outcome.finished_s[self._name] <= self.at_s]
        rounds = tuple(over[: len(over) - keep])
        if not rounds:
            return
        self._unreported = self._unreported[len(rounds) :]
        if steps is not NO_STEPS:
            self._seconds, self._steps, self._drift = 0.0, 0, ()
        yield DueReport(self.at_s, rounds, steps)


class Learning(Protocol):
    """Provides the members' activities, and the means of their rounds.

    The scheme's own algorithm determines the activities, also of members that learn nothing.
    """

    def next_activities(self) -> Mapping[str, Activity]:
        """Return each member's activity up to its next round. All members request the same number of rounds."""

    def reduce(self, number: int, plan: Plan) -> Payload:
        """Give all members the mean of the round that they requested. Returns the bytes that this moves."""

    def resume(self, completed: CompletedRound) -> None:
        """Let the members go on with the mean, under the plan in force now."""

    def digest(self, member: str) -> str:
        """Return the SHA-256 of a member's parameters at its end; empty if it has none."""


class GradientRounds:
    """Members that reduce the whole gradient after each step: their rounds are known without PyTorch and a model."""

    def __init__(self, jobs: Mapping[str, Job], elements: int) -> None:
        self._jobs = jobs
        self._elements = elements
        self._completed = 0
        self._operations: tuple[Operation, ...] = ()

    def next_activities(self) -> dict[str, Activity]:
        """Return one step and its round for each member, after the end of the step before."""
        return {name: self._activity(job) for name, job in self._jobs.items()}

    def _activity(self, job: Job) -> Activity:
        """Return the end of the step whose round is over, then the next step and its round, if any."""
        requests = self._completed < job.rounds
        return Activity((*self._operations, ComputeStep()) if requests else self._operations, requests_round=requests)

    def reduce(self, number: int, plan: Plan) -> Payload:
        """Return the bytes of a round; no values are added."""
        return coded_payload(plan, number, self._elements)

    def resume(self, completed: CompletedRound) -> None:
        """Record that a round is over: each member's next activity ends its step and begins the step after."""
        self._operations = (AwaitRound(completed.round), EndStep({}))
        self._completed = max(self._completed, completed.round)

    def digest(self, member: str) -> str:
        """Return an empty text: these members have no parameters."""
        return ""


@contextmanager
def learning_of(
    jobs: Mapping[str, Job], elements: int, gradients: bool, plan: Callable[[], Plan]
) -> Iterator[Learning]:
    """Provide the activities and the means of the members of these jobs, whose model has `elements`.

    With `gradients` members learn for real. `plan` returns the plan of the next round.

    Raises:
        EmulationError: data is missing or cannot be made, or there is no GPU.
    """
    each_step = all(job.scheme == "gradients" and job.options.get("powersgd_rank") is None for job in jobs.values())
    if each_step and not gradients:
        yield GradientRounds(jobs, elements)
        return
    # Loads PyTorch, which gradient rounds need not.
    from testbed.simulation.member_training import PlaceholderMembers, RealMembers, real_learners

    if gradients:
        with real_learners() as make, closing(RealMembers(jobs, make, plan)) as real:
            yield real
    else:
        with closing(PlaceholderMembers(jobs, elements, plan)) as placeholders:
            yield placeholders
