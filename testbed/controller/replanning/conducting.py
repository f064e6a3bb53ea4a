"""How members train, chosen live: gathers what rounds tell of training, and has a choice made by it.

a round is over --> TrainedHistory
a plan is considered --> TrainingQuestion --(beside all else)--> TrainingVerdict
the verdict changes something --> a plan with the choice, put in force as any
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import fmean, median
from typing import Any

from testbed.controller.model.round_log import ReportedRound
from testbed.controller.replanning.foresight import Foresight
from testbed.plan import Plan, codec_bytes
from testbed.planning import Policy, View
from testbed.planning.conductor import (
    FIRST,
    Candidate,
    Situation,
    StepWorth,
    TrainedHistory,
    TrainedStretch,
    TrainingVerdict,
    candidates,
    choose,
    learn,
)
from testbed.protocol import Job

#: The part of a round's timeout that the fastest member may have to wait for the slowest one's steps.
WAITING = 0.25

#: Rounds over which it is looked how long members compute.
COMPUTED = 8


@dataclass(frozen=True, slots=True)
class TrainingQuestion:
    """What is known when it is considered how members train: how it went, and where the run is.

    `step_s` are members' seconds of a step, `timeout_s` how long one waits for another in a round, `rounds` those under
    the plan in force, of which the newest exchanged in `exchange_s` (the median; None where there were none).
    """

    stretches: tuple[TrainedStretch, ...]
    step_s: Mapping[str, float]
    rounds: int
    exchange_s: float | None
    steps: int
    steps_left: int
    elapsed_s: float
    margin: float
    optimizer: str
    timeout_s: float

    @property
    def apart_s(self) -> float:
        """How much longer the slowest member computes for a step than the fastest, which waits for it in a round."""
        return max(self.step_s.values()) - min(self.step_s.values())


@dataclass(frozen=True, slots=True)
class TrainingAnswer:
    """The `verdict`, what it was made by, and, where it changes something, the `plan` that has the choice."""

    verdict: TrainingVerdict
    progress: StepWorth
    drift: float | None
    plan: Plan | None
    current_s: float
    proposed_s: float

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the record of decisions."""
        return {**self.verdict.to_json(), "learned": self.progress.to_json(), "drift": self.drift}


class Conducting:
    """Of a run whose members train as plans say, to the end of so many `steps` of a `job` like each member's."""

    def __init__(self, steps: int, margin: float, job: Job) -> None:
        self._history = TrainedHistory()
        self._last = FIRST
        self._whole = steps
        self._margin = margin
        self._optimizer = str(job.workload.get("optimizer", ""))
        self._timeout_s = job.round_timeout_s
        self._step_s: dict[str, list[float]] = {}
        self._began_s: float | None = None
        self._ended_s = 0.0

    @property
    def steps_left(self) -> int:
        """Of the run."""
        return max(self._whole - self._history.steps, 0)

    def round_over(self, done: ReportedRound, plan: Plan) -> None:
        """A round among all is over, which went by `plan`.

        Where plans take force by the next round the steps before it were still taken as they were before.
        """
        reports = done.reports.values()
        taken = max((its.metrics.get("steps") or 0.0 for its in reports), default=0.0)
        count = int(taken) - self._history.steps
        if count < 1:
            return
        candidate = candidate_of(plan)
        if count != candidate.steps and count == self._last.steps:
            candidate = self._last
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
            _mean(its.metrics.get("agreed_loss") for its in reports),
            _mean(its.metrics.get("loss") for its in reports) if candidate.steps > 1 else None,
            fmean(apart) if apart else None,
        )

    @staticmethod
    def dress(plan: Plan, in_force: Plan | None) -> Plan:
        """The plan for members that go on to train as they do."""
        candidate = candidate_of(in_force)
        return replace(plan, training=candidate.training, codec=candidate.codec)

    def compute_s(self, steps: int) -> dict[str, float]:
        """Seconds that each member computes before a round of so many steps."""
        return {member: median(own) * steps for member, own in self._step_s.items()}

    def question(self, exchanges_s: Sequence[float], rounds: int) -> TrainingQuestion:
        """What there is to consider, after so many rounds under the plan in force, the newest of which exchanged for so
        long."""
        return TrainingQuestion(
            stretches=self._history.stretches,
            step_s=self.compute_s(1),
            rounds=rounds,
            exchange_s=median(exchanges_s) if exchanges_s else None,
            steps=self._history.steps,
            steps_left=self.steps_left,
            elapsed_s=0.0 if self._began_s is None else self._ended_s - self._began_s,
            margin=self._margin,
            optimizer=self._optimizer,
            timeout_s=self._timeout_s,
        )


def consider(
    asked: TrainingQuestion,
    policy: Policy,
    dress: Callable[[Plan, View], Plan],
    plan: Plan,
    view: View,
    foresight: Foresight,
) -> TrainingAnswer | None:
    """What members had best do; None where nothing is known of how they train. `plan` is what they go by else.

    `view` has the bytes of the codec in force. Exchanges are foreseen over the trees of `plan`, through each codec, and
    corrected by how long they took; the plan with another codec is what the policy makes of that one's bytes.
    """
    if plan.training is None or not asked.step_s or not any(stretch.losses for stretch in asked.stretches):
        return None
    current = Candidate.of(plan.training, plan.codec)
    idle = replace(foresight, compute_s={})
    able = (its for its in candidates(asked.optimizer) if its.steps * asked.apart_s <= WAITING * asked.timeout_s)
    among = dict.fromkeys((FIRST, current, *able))
    simulated = {}
    for codec in sorted({its.codec for its in among}):
        through = replace(view, model_bytes=bytes_through(codec, view.model_bytes, current.codec))
        simulated[codec] = idle.simulated(plan, through)
    foreseen, off = foresight.correction(plan)
    off_by = exp(foreseen) if asked.exchange_s is None else asked.exchange_s / simulated[current.codec]
    exchange_s = {codec: seconds * off_by for codec, seconds in simulated.items()}
    progress = learn(asked.stretches, asked.optimizer)
    situation = Situation(
        compute_s=max(asked.step_s.values()),
        exchange_s=exchange_s,
        exchange_off=off,
        current=current,
        rounds=asked.rounds,
        steps=asked.steps,
        steps_left=asked.steps_left,
        elapsed_s=asked.elapsed_s,
        margin=asked.margin,
    )
    verdict = choose(situation, progress, among)
    drift = asked.stretches[-1].apart
    seconds = situation.step_s(current) * current.steps
    if not verdict.change:
        return TrainingAnswer(verdict, progress, drift, None, seconds, seconds)
    chosen = verdict.candidate
    if chosen.codec != current.codec:
        through = replace(view, model_bytes=bytes_through(chosen.codec, view.model_bytes, current.codec))
        plan = dress(policy.replan(through, plan), through)
    plan = replace(plan, training=chosen.training, codec=chosen.codec)
    return TrainingAnswer(verdict, progress, drift, plan, seconds, situation.step_s(chosen) * chosen.steps)


def candidate_of(plan: Plan | None) -> Candidate:
    """How members train by a plan; before there is one, as they begin."""
    return FIRST if plan is None or plan.training is None else Candidate.of(plan.training, plan.codec)


def through_codec(view: View, plan: Plan | None) -> View:
    """The view, which has the bytes of a model as it is, with those that the codec in force makes of it."""
    return replace(view, model_bytes=bytes_through(candidate_of(plan).codec, view.model_bytes, FIRST.codec))


def bytes_through(codec: str, model_bytes: int, through: str) -> int:
    """What one member contributes to a round through a `codec`, if that is `model_bytes` `through` another."""
    return max(1, round(model_bytes * codec_bytes(codec) / codec_bytes(through)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
