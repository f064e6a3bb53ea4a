"""Which candidate reaches a loss soonest, and whether it is worth going over to it.

    seconds for as much as a step of flat all-reduce is worth    τ = (computing a step + a round's exchange / H) / η(H)

τ is known within a factor: s of its logarithm comes from what is not known of η and of the network. With the logarithm
X ~ N(d, s²) of how many times faster another candidate is than the one in force, of a second that it replaces it saves
1 - e^-X: where that is a saving Φ(d/s) - e^(s²/2-d) Φ(d/s - s) in the mean. Where it is none it costs e^-X - 1, in the
mean e^(s²/2-d) Φ(s - d/s) - Φ(-d/s).

 - It is gone over to where it surely saves the margin.
 - It is tried where that may well be so, and knowing it pays: what it may save of all the time that is left is more
   than what the trial may cost. A trial that does not pay is taken back like any choice: by what was learned from it.
 - It is none where it takes more than REACH times the local steps of the one in force: it is come to step by step.
 - It is none where exchanges are less of flat all-reduce's step than the margin: there is nothing to save.
 - It is none where the run may end, at its last sample, at a loss that is more than half of SAMPLES above what flat
   all-reduce alone would end at, and is left where that may be more than SAMPLES: samples cost, too. It may where it is
   so in one of twenty cases (KEPT_TO), by all that is not known of what steps were and will be worth. Where so much is
   lost already that this can't be held, what flat all-reduce from now on would end at is held, to LATE.
 - Where the one in force does worse than flat all-reduce it is left, whatever the margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import erf, exp, log
from typing import Any

from testbed.planning.conductor.candidate import FIRST, Candidate
from testbed.planning.conductor.progress import StepWorth

#: At the end of equal samples the loss may be above flat all-reduce's by so much of it.
SAMPLES = 0.02
LATE = 0.005

#: It is kept to that in nineteen of twenty cases: so many standard deviations.
KEPT_TO = 1.64

#: Of a loss below this part of the first one there is nothing left to learn that could be told from noise: a part of it
#: counts as one of that.
LEARNED = 0.1

#: What is sure is so many standard deviations below the mean: in four of five cases it is more.
SURELY = 0.84

#: A trial has so many rounds at least, and steps: local steps begin to show when there were several merges.
TRIAL_ROUNDS, TRIAL_STEPS = 4, 16

#: So many times the local steps in force are believed at most: where more of them lead, the curve has not been. Without
#: such a limit a GPT went from 16 to 128 after 150 steps, and ended 20 % above all-reduce's loss.
REACH = 4

#: What a trial may cost at most in the mean, of all the time of the run.
TRIAL_COST = 0.02

#: The chance at least that a trial finds a saving of the margin.
TRIAL_CHANCE = 0.25

#: Worse than flat all-reduce by more than this is worse.
WORSE = 0.02


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a run is.

    compute_s     the slowest member's seconds of a step
    exchange_s    seconds of a round's exchange, by codec; its logarithm is off by `exchange_off` (standard deviation)
    current       the candidate in force, for so many `rounds`
    steps         that were taken, in `elapsed_s`, and `steps_left` of the run
    margin        the part of the time that another must save
    """

    compute_s: float
    exchange_s: Mapping[str, float]
    exchange_off: float
    current: Candidate
    rounds: int
    steps: int
    steps_left: int
    elapsed_s: float
    margin: float

    def step_s(self, candidate: Candidate) -> float:
        """A step's seconds, its part of a round among them."""
        return self.compute_s + self.exchange_s[candidate.codec] / candidate.steps

    @property
    def saves(self) -> bool:
        """Whether exchanges are enough of flat all-reduce's step for anything to be saved."""
        return self.exchange_s[FIRST.codec] > self.margin * self.step_s(FIRST)


@dataclass(frozen=True, slots=True)
class CandidateTerms:
    """A candidate as it was judged: what it takes, what that is worth, and how it stands to the one in force.

    worth       η, of a step; its logarithm is off by `spread`
    effective_s τ
    final_loss  at the end of the run's samples
    above       the part of flat all-reduce's final loss by which its own may be higher
    saves       the part of the time that it saves in the mean, against the one in force; less than 0 where it costs
    """

    candidate: str
    step_s: float
    compute_s: float
    exchange_s: float
    worth: float
    spread: float
    effective_s: float
    final_loss: float
    above: float
    saves: float
    verdict: str


@dataclass(frozen=True, slots=True)
class TrainingVerdict:
    """What members had best do from now on, and why; all `terms`, the best first. A `trial` is to learn its worth."""

    candidate: Candidate
    change: bool
    trial: bool
    why: str
    terms: tuple[CandidateTerms, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
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
    ahead: float  # d
    off: float  # s

    @property
    def first(self) -> bool:
        return self.candidate == FIRST

    def wasteful(self, allowed: float) -> bool:
        """Whether it needs too many samples."""
        return not self.first and self.terms.above > allowed

    @property
    def gain(self) -> float:
        return _above(self.ahead, self.off)

    @property
    def cost(self) -> float:
        return _below(self.ahead, self.off)


def choose(situation: Situation, progress: StepWorth, among: Iterable[Candidate]) -> TrainingVerdict:
    """Judge all candidates, the one in force and flat all-reduce among them, and choose one."""
    judged = [_judge(candidate, situation, progress) for candidate in among]
    by = {one.candidate: one for one in judged}
    current, flat = by[situation.current], by[FIRST]
    able = [one for one in judged if one.first or (situation.saves and one.ahead >= flat.ahead)]
    able = [one for one in able if one is current or not one.wasteful(SAMPLES / 2)]
    able = [one for one in able if one.candidate.steps <= REACH * situation.current.steps]
    chosen, trial, why = _choice(situation, current, flat, able)
    terms = sorted((_with_verdict(one, chosen, current, able) for one in judged), key=lambda its: its.effective_s)
    return TrainingVerdict(chosen.candidate, chosen is not current, trial, why, tuple(terms))


def _choice(situation: Situation, current: _Judged, flat: _Judged, able: list[_Judged]) -> tuple[_Judged, bool, str]:
    wanted = -log(1 - situation.margin)
    if situation.rounds < TRIAL_ROUNDS or situation.rounds * situation.current.steps < _least_steps(situation.current):
        return current, False, f"{situation.rounds} rounds of {current.candidate} say too little yet"
    failing = current.wasteful(SAMPLES)
    if flat.ahead > WORSE or failing:
        best = max((one for one in able if one is not current), key=lambda one: one.ahead)
        why = (
            f"ends {current.terms.final_loss:.4g} at equal samples, flat all-reduce {flat.terms.final_loss:.4g}"
            if failing
            else f"takes {exp(flat.ahead):.2f} times as long as flat all-reduce for as much"
        )
        return best, False, f"{current.candidate} {why}: {best.candidate}"
    sure = [one for one in able if one.ahead - SURELY * one.off > wanted]
    if sure:
        best = max(sure, key=lambda one: one.ahead)
        return (
            best,
            False,
            f"{best.candidate} saves {1 - exp(-best.ahead):.0%} of the time, surely more than {situation.margin:.0%}",
        )
    total_s = situation.elapsed_s + situation.steps_left * current.terms.step_s
    tried = [one for one in able if one is not current and _worth_a_trial(one, situation, current, total_s)]
    best = max(able, key=lambda one: one.ahead, default=current)
    if tried:
        best = max(tried, key=lambda one: one.gain - one.cost)
        return (
            best,
            True,
            (
                f"a trial of {best.candidate}: it may save {best.gain:.0%} of the time that is left, and cost "
                f"{best.cost:.0%} of {_trial_steps(best.candidate)} steps"
            ),
        )
    if not situation.saves:
        share = 1 - situation.compute_s / situation.step_s(FIRST)
        return current, False, f"exchanges are {share:.0%} of a step of flat all-reduce: there is nothing to save"
    if best is current or best.ahead <= 0:
        return current, False, f"{current.candidate} is the best"
    return (
        current,
        False,
        f"{best.candidate} saves {1 - exp(-best.ahead):.0%}, not surely the {situation.margin:.0%} wanted",
    )


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


def _least_steps(candidate: Candidate) -> int:
    """Before which a candidate is not left: none for flat all-reduce, of which the exchange is all there is to know."""
    return 0 if candidate.scheme == FIRST.scheme else TRIAL_STEPS


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
    return _Judged(candidate, terms, ahead, off)


def _share(situation: Situation, candidate: Candidate) -> float:
    """The part of a step that is exchange: what an error of its prediction weighs."""
    step_s = situation.step_s(candidate)
    return (step_s - situation.compute_s) / step_s if step_s else 0.0


def _with_verdict(one: _Judged, chosen: _Judged, current: _Judged, able: list[_Judged]) -> CandidateTerms:
    words = [
        *(["chosen"] if one is chosen else []),
        *(["in force"] if one is current else []),
        *(["would end too high at equal samples"] if one.wasteful(SAMPLES / 2) else []),
        *(["too far from what was measured"] if one.candidate.steps > REACH * current.candidate.steps else []),
        *(["no faster than flat all-reduce"] if one not in able and not one.wasteful(SAMPLES / 2) else []),
    ]
    return CandidateTerms(**{**asdict(one.terms), "verdict": ", ".join(words)})


def _normal(z: float) -> float:
    return 0.5 * (1 + erf(z / 2**0.5))


def _above(ahead: float, off: float) -> float:
    """The mean of 1 - e^-X where that is above 0."""
    if not off:
        return max(1 - exp(-ahead), 0.0)
    return max(_normal(ahead / off) - exp(off**2 / 2 - ahead) * _normal(ahead / off - off), 0.0)


def _below(ahead: float, off: float) -> float:
    """The mean of e^-X - 1 where that is above 0."""
    if not off:
        return max(exp(-ahead) - 1, 0.0)
    return max(exp(off**2 / 2 - ahead) * _normal(off - ahead / off) - _normal(-ahead / off), 0.0)
