"""The live choice of how members train: gathers rounds, and judges schemes and codecs by them.

a round ended --> TrainedHistory
a plan is considered --> TrainingQuestion --(in the background)--> TrainingVerdict
the verdict changes something --> a plan with the chosen scheme and codec, put in force like any other
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import fmean, median
from typing import Any

from testbed.controller.model.round_log import ReportedRound
from testbed.controller.replanning.prediction import RoundPredictor
from testbed.plan import PLAIN_CODEC, Plan
from testbed.planning import Policy, View
from testbed.planning.conductor import (
    Candidate,
    SchemeCatalog,
    Situation,
    StepWorth,
    TrainedHistory,
    TrainedStretch,
    TrainingVerdict,
    choose,
    learn,
)
from testbed.protocol import Job
from testbed.telemetry.averages import mean_of_known

#: The largest part of a round's timeout that the fastest member may wait for the slowest member's steps.
WAITING = 0.25

#: The newest rounds that members' computing time is taken from.
COMPUTED = 8


@dataclass(frozen=True, slots=True)
class TrainingQuestion:
    """The inputs of a choice of how members train."""

    #: The schemes to choose from.
    schemes: SchemeCatalog
    #: The history of the run's training.
    stretches: tuple[TrainedStretch, ...]
    #: Each member's seconds of a step.
    step_s: Mapping[str, float]
    #: Successive rounds so far of how members train now.
    rounds: int
    #: The median seconds of the newest exchanges under the plan in force; None before the first.
    exchange_s: float | None
    #: Steps of the run so far, and steps left.
    steps: int
    steps_left: int
    #: Seconds since the first round began.
    elapsed_s: float
    #: The part of the time that a change must save.
    margin: float
    optimizer: str
    #: Seconds for which members wait for each other in a round.
    timeout_s: float

    @property
    def apart_s(self) -> float:
        """The seconds of a step for which the fastest member waits for the slowest one."""
        return max(self.step_s.values()) - min(self.step_s.values())


@dataclass(frozen=True, slots=True)
class TrainingAnswer:
    """A choice of how members train, and its inputs."""

    verdict: TrainingVerdict
    #: The worth of steps, as learned from the history.
    progress: StepWorth
    #: Members' distance from their mean in the last stretch, as a part of the mean's movement; None if unreported.
    drift: float | None
    #: The plan with the choice, or None if nothing changes.
    plan: Plan | None
    #: Seconds of a round with its steps, under the plan in force and under the choice.
    current_s: float
    proposed_s: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the decision log."""
        return {**self.verdict.to_json(), "learned": self.progress.to_json(), "drift": self.drift}


class TrainingMonitor:
    """Gathers the rounds of a run whose plans say how members train.

    Args:
        steps: The steps of the run.
        margin: The part of the time that a change must save.
        job: The job of any member; the optimizer and the timeout are the same for all.
        schemes: The schemes to choose from. Members begin with flat all-reduce.
    """

    def __init__(self, steps: int, margin: float, job: Job, schemes: SchemeCatalog) -> None:
        self._schemes = schemes
        self._history = TrainedHistory()
        self._last = schemes.flat
        self._rounds = 0  # successive rounds of `_last`, also under several plans
        self._total_steps = steps
        self._margin = margin
        self._optimizer = str(job.workload.get("optimizer", ""))
        self._timeout_s = job.round_timeout_s
        self._step_s: dict[str, list[float]] = {}
        self._began_s: float | None = None
        self._ended_s = 0.0

    @property
    def steps_left(self) -> int:
        """The steps of the run that are left."""
        return max(self._total_steps - self._history.steps, 0)

    def rounds_left(self, in_force: Plan | None) -> int:
        """Return the rounds that are left under a plan, by its local steps."""
        return self.steps_left // self._candidate(in_force).steps

    def round_over(self, done: ReportedRound, plan: Plan) -> None:
        """Record that a round under `plan` ended.

        The first round under another plan reduces steps that were taken under the previous plan. They count for the
        previous plan's scheme.
        """
        reports = done.reports.values()
        taken = max((its.metrics.get("steps") or 0.0 for its in reports), default=0.0)
        count = int(taken) - self._history.steps
        if count < 1:
            return
        candidate = self._candidate(plan)
        if count != candidate.steps and count == self._last.steps:
            candidate = self._last
        self._rounds = self._rounds + 1 if candidate == self._last else 1
        self._last = candidate
        for member, report in done.reports.items():
            own = self._step_s.setdefault(member, [])
            own.append((report.compute_s + report.paced_s) / count)
            del own[:-COMPUTED]
        began_s = min(its.started_s for its in reports)
        self._began_s = began_s if self._began_s is None else self._began_s
        self._ended_s = max(its.finished_s for its in reports)
        apart = [its.apart / its.moved for report in reports for its in report.drift if its.moved]
        self._history.add(
            candidate,
            int(taken),
            len(done.reports),
            mean_of_known(its.metrics.get("agreed_loss") for its in reports),
            mean_of_known(its.metrics.get("loss") for its in reports) if candidate.steps > 1 else None,
            fmean(apart) if apart else None,
        )

    def dress(self, plan: Plan, in_force: Plan | None) -> Plan:
        """Return the plan with the scheme and codec in force, so that members train on as before."""
        candidate = self._candidate(in_force)
        return replace(plan, training=candidate.training, codec=candidate.codec)

    def compute_s(self, steps: int) -> dict[str, float]:
        """Return the seconds that each member computes before a round of `steps` steps."""
        return {member: median(own) * steps for member, own in self._step_s.items()}

    def _candidate(self, plan: Plan | None) -> Candidate:
        """Return the scheme and codec of a plan, or flat all-reduce if there is no plan or it has none."""
        return self._schemes.flat if plan is None or plan.training is None else Candidate.of(plan.training, plan.codec)

    def through(self, view: View, plan: Plan | None) -> View:
        """Return the view with the model's bytes, uncompressed so far, as a round of the plan's scheme sends them."""
        codec = PLAIN_CODEC if plan is None or plan.training is None else plan.codec
        return replace(view, model_bytes=self._schemes.coded_bytes(codec, view.model_bytes, PLAIN_CODEC))

    def question(self, exchanges_s: Sequence[float], in_force: Plan | None) -> TrainingQuestion:
        """Return the inputs of the next choice.

        `exchanges_s` are the seconds of the newest exchanges under the plan in force.
        """
        return TrainingQuestion(
            schemes=self._schemes,
            stretches=self._history.stretches,
            step_s=self.compute_s(1),
            rounds=self._rounds if self._candidate(in_force) == self._last else 0,
            exchange_s=median(exchanges_s) if exchanges_s else None,
            steps=self._history.steps,
            steps_left=self.steps_left,
            elapsed_s=0.0 if self._began_s is None else self._ended_s - self._began_s,
            margin=self._margin,
            optimizer=self._optimizer,
            timeout_s=self._timeout_s,
        )


def choose_training(
    question: TrainingQuestion,
    policy: Policy,
    dress: Callable[[Plan, View], Plan],
    plan: Plan,
    view: View,
    predictor: RoundPredictor,
) -> TrainingAnswer | None:
    """Choose how members train from now on.

    The exchange through each codec is simulated over the trees of `plan`, and corrected by the measured exchanges.

    Args:
        question: The training so far, and the limits of the choice.
        policy: Makes a plan for the chosen codec's bytes, if that codec is not in force.
        dress: Completes a plan of the policy for the run.
        plan: The plan that members follow if this choice changes nothing.
        view: The network, with the model's bytes as the codec in force encodes them.
        predictor: Simulates rounds, and knows the correction of `plan` by its measured rounds.

    Returns:
        The choice, or None if nothing is known of the training yet.

    Raises:
        PolicyError: the policy has no plan for the chosen codec.
    """
    if plan.training is None or not question.step_s or not any(stretch.losses for stretch in question.stretches):
        return None
    current = Candidate.of(plan.training, plan.codec)
    idle = replace(predictor, compute_s={})
    every = question.schemes.candidates(question.optimizer)
    able = (its for its in every if its.steps * question.apart_s <= WAITING * question.timeout_s)
    among = dict.fromkeys((question.schemes.flat, current, *able))
    simulated = {}
    for codec in sorted({its.codec for its in among}):
        coded_bytes = question.schemes.coded_bytes(codec, view.model_bytes, current.codec)
        through = replace(view, model_bytes=coded_bytes)
        simulated[codec] = idle.simulate(plan, through)
    correction, off = predictor.correction(plan)
    predicted_s = simulated[current.codec]  # 0 for a member alone
    off_by = question.exchange_s / predicted_s if question.exchange_s is not None and predicted_s else exp(correction)
    exchange_s = {codec: seconds * off_by for codec, seconds in simulated.items()}
    progress = learn(question.stretches, question.schemes, question.optimizer)
    situation = Situation(
        compute_s=max(question.step_s.values()),
        exchange_s=exchange_s,
        exchange_off=off,
        current=current,
        rounds=question.rounds,
        steps=question.steps,
        steps_left=question.steps_left,
        elapsed_s=question.elapsed_s,
        margin=question.margin,
    )
    verdict = choose(situation, progress, among)
    drift = question.stretches[-1].apart
    seconds = situation.step_s(current) * current.steps
    if not verdict.change:
        return TrainingAnswer(verdict, progress, drift, None, seconds, seconds)
    chosen = verdict.candidate
    if chosen.codec != current.codec:
        coded_bytes = question.schemes.coded_bytes(chosen.codec, view.model_bytes, current.codec)
        through = replace(view, model_bytes=coded_bytes)
        plan = dress(policy.replan(through, plan), through)
    plan = replace(plan, training=chosen.training, codec=chosen.codec)
    return TrainingAnswer(verdict, progress, drift, plan, seconds, situation.step_s(chosen) * chosen.steps)
