"""The conductor's choice: which candidate reaches a loss soonest, and whether a change to it pays [ours].

    seconds for the worth of a step of flat all-reduce    τ = (computing a step + a round's exchange / H) / η(H)

H is a candidate's number of local steps to a round, and η(H) the worth of one of them beside a step of flat all-reduce
(`progress`).

τ is uncertain by a factor: its logarithm has the standard deviation s, from η and from the network. Let X ~ N(d, s²) be
the logarithm of another candidate's speed over that of the candidate in force. For each second of the latter it saves
1 - e^-X. The mean saving is Φ(d/s) - e^(s²/2-d) Φ(d/s - s) where X > 0; the mean cost e^-X - 1 where X < 0 is
e^(s²/2-d) Φ(s - d/s) - Φ(-d/s).

 - A candidate is chosen if it surely saves the margin.
 - A candidate is tried if it may well save the margin, and if the trial is worth its cost: the possible saving over the
   remaining time exceeds the possible cost of the trial. A trial ends like any choice: by the losses seen under it.
 - Candidates with more than REACH times the current local steps are excluded: they are reached step by step.
 - All candidates but flat all-reduce are excluded if exchanges are a smaller part of its step than the margin.
 - Samples cost, too. A candidate is excluded if the run, at its last sample, may end at a loss more than half of
   SAMPLES above the loss that flat all-reduce alone would end at; the candidate in force is abandoned if its excess may
   be more than SAMPLES. "May" means in one of twenty cases (KEPT_TO), by the uncertainty of past and future steps'
   worth. If too much is lost already for that, the limit is LATE above the loss that flat all-reduce from now on would
   end at.
 - The candidate in force is abandoned, whatever the margin, if it does worse than flat all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import erf, exp, log
from typing import Any

from testbed.plan import PLAIN_CODEC
from testbed.planning.conductor.candidate import Candidate
from testbed.planning.conductor.progress import StepWorth

#: The parts by which the loss at the end of equal samples may exceed flat all-reduce's: from the begin, or from now on.
SAMPLES = 0.02
LATE = 0.005

#: The standard deviations of nineteen in twenty cases, in which these limits are kept.
KEPT_TO = 1.64

#: Below this part of the first loss, progress cannot be told from noise; excesses then count as parts of this loss.
LEARNED = 0.1

#: A sure saving lies this many standard deviations below the mean, so that the saving is larger in four of five cases.
SURELY = 0.84

#: The least rounds and steps of a trial: the effect of local steps shows only after several merges.
TRIAL_ROUNDS, TRIAL_STEPS = 4, 16

#: The greatest factor from the local steps in force to a candidate's: beyond, the curve has not been seen. Without this
#: limit a GPT went from 16 to 128 after 150 steps, and ended 20 % above all-reduce's loss.
REACH = 4

#: The greatest mean cost of a trial, as a part of the run's time.
TRIAL_COST = 0.02

#: The least chance that a trial finds a saving of the margin.
TRIAL_CHANCE = 0.25

#: The logarithm of τ over flat all-reduce's above which the candidate in force is abandoned.
WORSE = 0.02


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of a run at a choice."""

    #: The slowest member's seconds of a step.
    compute_s: float
    #: Seconds of a round's exchange through each codec, and the standard deviation of their logarithms.
    exchange_s: Mapping[str, float]
    exchange_off: float
    #: The candidate in force, and its rounds so far.
    current: Candidate
    rounds: int
    #: Steps of the run so far, and steps left.
    steps: int
    steps_left: int
    elapsed_s: float
    #: The part of the time that another candidate must save.
    margin: float

    def step_s(self, candidate: Candidate) -> float:
        """Return the seconds of a step under a candidate, with the step's part of a round."""
        return self.compute_s + self.exchange_s[candidate.codec] / candidate.steps

    @property
    def exchange_share(self) -> float:
        """The part of flat all-reduce's step that its exchange takes."""
        exchange_s = self.exchange_s[PLAIN_CODEC]
        return exchange_s / (self.compute_s + exchange_s)

    @property
    def saves(self) -> bool:
        """True if exchanges take a larger share of flat all-reduce's step than the margin, so that a change may pay."""
        return self.exchange_share > self.margin


@dataclass(frozen=True, slots=True)
class CandidateTerms:
    """The judgement of a candidate, term by term."""

    candidate: str
    #: Seconds of a step with its part of a round, of its computing alone, and of a round's exchange.
    step_s: float
    compute_s: float
    exchange_s: float
    #: η, and the standard deviation of its logarithm.
    worth: float
    spread: float
    #: τ.
    effective_s: float
    #: The predicted loss at the end of the run's samples, and the part by which it may exceed flat all-reduce's.
    final_loss: float
    above: float
    #: The part of the time that it saves against the one in force; below 0 if it costs time.
    saves: float
    verdict: str


@dataclass(frozen=True, slots=True)
class TrainingVerdict:
    """The candidate by which members are to train from now on, with the reasons."""

    candidate: Candidate
    #: Whether the candidate differs from the one in force, and whether this is a trial to learn its worth.
    change: bool
    trial: bool
    why: str
    #: The judgements of all candidates, the best first.
    terms: tuple[CandidateTerms, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        return {
            "chosen": str(self.candidate),
            "change": self.change,
            "trial": self.trial,
            "why": self.why,
            "terms": [asdict(one) for one in self.terms],
        }


@dataclass(frozen=True, slots=True)
class _Judged:
    candidate: Candidate
    terms: CandidateTerms
    ahead: float  # d of the module's docstring
    off: float  # s
    #: Whether it is flat all-reduce without a codec.
    flat: bool

    def wasteful(self, allowed: float) -> bool:
        """Return whether its final loss may exceed that of flat all-reduce by more than the part `allowed`."""
        return not self.flat and self.terms.above > allowed

    @property
    def gain(self) -> float:
        return _mean_saving(self.ahead, self.off)

    @property
    def cost(self) -> float:
        return _mean_cost(self.ahead, self.off)


def choose(situation: Situation, progress: StepWorth, among: Iterable[Candidate]) -> TrainingVerdict:
    """Judge all candidates, which include the one in force and flat all-reduce, and choose one."""
    judged = [_judge(candidate, situation, progress) for candidate in among]
    by = {one.candidate: one for one in judged}
    current, flat = by[situation.current], by[progress.schemes.flat]
    able = [one for one in judged if one.flat or (situation.saves and one.ahead >= flat.ahead)]
    able = [one for one in able if one is current or not one.wasteful(SAMPLES / 2)]
    able = [one for one in able if one.candidate.steps <= REACH * situation.current.steps]
    chosen, trial, why = _choice(situation, current, flat, able)
    terms = sorted((_with_verdict(one, chosen, current, flat) for one in judged), key=lambda its: its.effective_s)
    return TrainingVerdict(chosen.candidate, chosen is not current, trial, why, tuple(terms))


def _choice(situation: Situation, current: _Judged, flat: _Judged, able: list[_Judged]) -> tuple[_Judged, bool, str]:
    wanted = -log(1 - situation.margin)
    # The worth of flat all-reduce is known, with any codec, so that it takes no least number of steps.
    least_steps = 0 if current.candidate.scheme == flat.candidate.scheme else TRIAL_STEPS
    if situation.rounds < TRIAL_ROUNDS or situation.rounds * situation.current.steps < least_steps:
        return current, False, f"{situation.rounds} rounds of {current.candidate} say too little yet"
    failing = current.wasteful(SAMPLES)
    if flat.ahead > WORSE or failing:
        best = max((one for one in able if one is not current), key=lambda one: one.ahead)
        why = (
            f"ends {current.terms.final_loss:.4g} at equal samples, flat all-reduce {flat.terms.final_loss:.4g}"
            if failing
            else f"takes {exp(flat.ahead):.2f} times as long as flat all-reduce for the same progress"
        )
        return best, False, f"{current.candidate} {why}: {best.candidate}"
    sure = [one for one in able if one.ahead - SURELY * one.off > wanted]
    if sure:
        best = max(sure, key=lambda one: one.ahead)
        why = f"{best.candidate} saves {1 - exp(-best.ahead):.0%} of the time, surely more than {situation.margin:.0%}"
        return best, False, why
    total_s = situation.elapsed_s + situation.steps_left * current.terms.step_s
    tried = [one for one in able if one is not current and _worth_a_trial(one, situation, current, total_s)]
    best = max(able, key=lambda one: one.ahead, default=current)
    if tried:
        best = max(tried, key=lambda one: one.gain - one.cost)
        why = f"it may save {best.gain:.0%} of the time that is left, and cost {best.cost:.0%} of the time of its"
        return best, True, f"a trial of {best.candidate}: {why} {_trial_steps(best.candidate)} steps"
    if not situation.saves:
        share = situation.exchange_share
        return current, False, f"exchanges are {share:.0%} of a step of flat all-reduce: there is nothing to save"
    if best is current or best.ahead <= 0:
        return current, False, f"{current.candidate} is the best"
    why = f"{best.candidate} saves {1 - exp(-best.ahead):.0%}, not surely the {situation.margin:.0%} wanted"
    return current, False, why


def _worth_a_trial(one: _Judged, situation: Situation, current: _Judged, total_s: float) -> bool:
    wanted = -log(1 - situation.margin)
    trial_s = _trial_steps(one.candidate) * one.terms.step_s
    left_s = max(situation.steps_left - _trial_steps(one.candidate), 0) * current.terms.step_s
    return (
        _normal((one.ahead - wanted) / one.off if one.off else -9.0) >= TRIAL_CHANCE
        and one.gain * left_s > one.cost * trial_s
        and one.cost * trial_s <= TRIAL_COST * total_s
    )


def _trial_steps(candidate: Candidate) -> int:
    return max(TRIAL_ROUNDS * candidate.steps, TRIAL_STEPS)


def _judge(candidate: Candidate, situation: Situation, progress: StepWorth) -> _Judged:
    current = situation.current
    step_s, current_s = situation.step_s(candidate), situation.step_s(current)
    log_worth = progress.log_worth(candidate)
    ahead = log(current_s / step_s) + log_worth - progress.log_worth(current)
    exchange = _share(situation, candidate) - _share(situation, current)
    spread = progress.spread(candidate, current)
    off = (spread**2 + (exchange * situation.exchange_off) ** 2) ** 0.5
    whole, left = situation.steps + situation.steps_left, situation.steps_left
    flat = progress.loss(whole)
    spent, unsure = progress.spent(candidate, left)
    final = flat + progress.above(spent, whole)
    counts = max(flat, LEARNED * progress.scale[0])
    alone = progress.above(spent - KEPT_TO * unsure, whole) / counts
    now = progress.worth
    onward = progress.above(now + left * exp(log_worth - KEPT_TO * progress.spread(candidate)), now + left) / counts
    terms = CandidateTerms(
        candidate=str(candidate),
        step_s=step_s,
        compute_s=situation.compute_s,
        exchange_s=situation.exchange_s[candidate.codec],
        worth=exp(log_worth),
        spread=progress.spread(candidate),
        effective_s=step_s / exp(log_worth),
        final_loss=final,
        above=min(alone, onward - LATE + SAMPLES / 2),
        saves=1 - exp(-ahead),
        verdict="",
    )
    return _Judged(candidate, terms, ahead, off, flat=candidate == progress.schemes.flat)


def _share(situation: Situation, candidate: Candidate) -> float:
    """Return the part of a step that is exchange: the weight of an error in its prediction."""
    step_s = situation.step_s(candidate)
    return (step_s - situation.compute_s) / step_s if step_s else 0.0


def _with_verdict(one: _Judged, chosen: _Judged, current: _Judged, flat: _Judged) -> CandidateTerms:
    words = [
        *(["chosen"] if one is chosen else []),
        *(["in force"] if one is current else []),
        *(["would end too high at equal samples"] if one.wasteful(SAMPLES / 2) else []),
        *(["too far from what was measured"] if one.candidate.steps > REACH * current.candidate.steps else []),
        *(["no faster than flat all-reduce"] if one is not flat and one.ahead <= flat.ahead else []),
    ]
    return replace(one.terms, verdict=", ".join(words))


def _normal(z: float) -> float:
    return 0.5 * (1 + erf(z / 2**0.5))


def _mean_saving(mean: float, deviation: float) -> float:
    """Return the mean of max(1 - e^-X, 0), where X is normal with this mean and standard deviation."""
    if not deviation:
        return max(1 - exp(-mean), 0.0)
    ratio = mean / deviation
    return max(_normal(ratio) - exp(deviation**2 / 2 - mean) * _normal(ratio - deviation), 0.0)


def _mean_cost(mean: float, deviation: float) -> float:
    """Return the mean of max(e^-X - 1, 0), where X is normal with this mean and standard deviation."""
    if not deviation:
        return max(exp(-mean) - 1, 0.0)
    ratio = mean / deviation
    return max(exp(deviation**2 / 2 - mean) * _normal(deviation - ratio) - _normal(-ratio), 0.0)
