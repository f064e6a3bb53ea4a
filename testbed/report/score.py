"""The score of a run's re-planning: its figures, as cells of tables and as sentences.

`testbed.report.replanning` computes a score from a run's records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import mean
from typing import ClassVar

from testbed.report import text
from testbed.telemetry.averages import median_of_known, percentile
from testbed.telemetry.estimate import SILENCE_S

#: The number of rounds after a decision that its prediction is compared with.
AHEAD = 8

#: The largest relative error of a good prediction, and of a kept promise of a swap.
WITHIN, PROMISED_WITHIN = 0.2, 0.25

#: An estimate above or below this many times the true rate makes a slow link look good, or a good link slow.
FAR_ABOVE, FAR_BELOW = 1.5, 0.67

#: A step is a change of a rate by this factor. It is noticed in time within NOTICED_S or NOTICED_ROUNDS rounds, and
#: soon within SOON_S or the link's round trip, whichever is longer.
STEP = 2.0
NOTICED_S, NOTICED_ROUNDS = 3.0, 3
SOON_S = 2.0


@dataclass(frozen=True, slots=True)
class SwapScore:
    """The promise of a swap and its outcome. Savings are shares of a whole round; None where it is not known."""

    epoch: int
    at_s: float
    #: The promised saving.
    promised: float | None
    #: The measured saving: the median of the AHEAD rounds after the swap against that of the AHEAD rounds before.
    brought: float | None
    #: The saving of the new plan, both plans simulated with the true rates during the rounds after the swap.
    true: float | None
    #: True if no other plan followed within AHEAD rounds.
    stayed: bool = False
    #: For a plan that stayed: the median of its first AHEAD rounds over the promised seconds, less 1.
    off: float | None = None
    #: For a plan that stayed: True if that median is below the one of the AHEAD rounds before, without the rounds that
    #: ended before the newest step of a link in use.
    shorter: bool | None = None


@dataclass(frozen=True, slots=True)
class TrialScore:
    """A plan that lost its trial, so that the plan before it returned."""

    epoch: int
    #: The epoch under which the plan before returned.
    returned: int
    at_s: float
    #: The seconds that the trial cost: its rounds, and the first one of the plan that returned, over the rounds before.
    cost_s: float


@dataclass(frozen=True, slots=True)
class Score:
    """The quality of a controller's estimates, predictions and swaps, in one run or in several together."""

    #: The relative errors of estimates that were at most SILENCE_S old.
    errors: tuple[float, ...] = ()
    #: For each estimate with an interval: whether the true rate lay in it.
    held: tuple[bool, ...] = ()
    #: For each link in use at each time that estimates were recorded: whether the link was known.
    known: tuple[bool, ...] = ()
    #: For each step: the seconds until it was noticed, infinite for one that was not, and whether that was in time.
    noticed_s: tuple[float, ...] = ()
    in_time: tuple[bool, ...] = ()
    #: For each prediction: the predicted seconds over the median of the AHEAD measured rounds.
    calibration: tuple[float, ...] = ()
    #: For each prediction: the first measured round over that median, which is how well one round can be predicted.
    first_rounds: tuple[float, ...] = ()
    #: The swaps that no event forced, without lost trials and the returns from them.
    swaps: tuple[SwapScore, ...] = ()
    trials: tuple[TrialScore, ...] = ()
    #: For each step: whether it was noticed soon.
    soon: tuple[bool, ...] = ()
    #: For each step: whether a member's transfer passed the link within the time that counts as soon.
    sent_over: tuple[bool, ...] = ()
    #: For each run: its seconds, and the processor seconds for which plans were considered, where they were measured.
    lasted_s: tuple[float, ...] = ()
    considered_s: tuple[float, ...] = ()
    #: For each link of each run: the share of its capacity that probes took.
    probed: tuple[float, ...] = ()

    #: Notes that explain the tables.
    KNOWN_NOTES: ClassVar[tuple[str, ...]] = (
        f"Estimates up to {SILENCE_S:g} s old are compared with the mean true rate over the time of their samples.",
        f"Steps are changes of the rate of a link in use by a factor of {STEP:g} and more. Steps "
        "of a link are left out if other links of every path over it are so slow that the path makes no step.",
        f"A step is noticed in time within {NOTICED_S:g} s or {NOTICED_ROUNDS} rounds. Where a link's round trip is "
        f"longer than {SOON_S:g} s, noticed within the round trip counts as noticed within {SOON_S:g} s.",
    )
    DONE_NOTES: ClassVar[tuple[str, ...]] = (
        f"Predictions of whole rounds under the plan in force are compared with the median of the next {AHEAD}: the "
        "10th percentile, the median and the 90th percentile of the ratio.",
        "The share of single rounds that lie as near to that median shows how steady rounds were.",
        "Swaps are the plan swaps that no event forced; a new plan is not slower if its round, simulated with the true "
        "rates afterwards, is no longer than the old plan's.",
        f"Of the plans that stayed for {AHEAD} rounds, those are as promised whose median is within "
        f"{text.percent(PROMISED_WITHIN)} of the promise, and those are shorter whose median is below that of the "
        "rounds before, since the newest step of a link in use.",
        f"A lost trial is a plan whose rounds were no shorter than before, and that was left within {AHEAD} rounds for "
        "the plan before it. It is not counted as a swap, and its time is how much longer its rounds took, as a share "
        "of the whole run.",
    )
    COST_NOTES: ClassVar[tuple[str, ...]] = (
        "Considering plans is a share of one processor over the run; a simulated run has none.",
        "Probes are a share of what a link could carry.",
    )

    @classmethod
    def together(cls, scores: Iterable[Score]) -> Score:
        """Return the quality of estimates, predictions and swaps over the runs of all the given scores together."""
        scores = list(scores)
        return cls(**{f.name: tuple(v for one in scores for v in getattr(one, f.name)) for f in fields(cls)})

    @property
    def promised(self) -> float | None:
        """The median saving that swaps promised, as a share of a whole round."""
        return median_of_known([swap.promised for swap in self.swaps])

    @property
    def brought(self) -> float | None:
        """The median saving of swaps, as measured."""
        return median_of_known([swap.brought for swap in self.swaps])

    @property
    def right(self) -> tuple[int, int]:
        """The number of swaps to plans that were not slower at the true rates, and of swaps for which that is known."""
        found = [swap.true for swap in self.swaps if swap.true is not None]
        return sum(true >= 0 for true in found), len(found)

    @property
    def as_promised(self) -> float | None:
        """The share of the plans that stayed whose rounds took as long as promised, within PROMISED_WITHIN."""
        return _share(abs(swap.off) <= PROMISED_WITHIN for swap in self.swaps if swap.off is not None)

    @property
    def shorter(self) -> float | None:
        """The share of the plans that stayed whose rounds were shorter than the rounds before."""
        return _share(swap.shorter for swap in self.swaps if swap.shorter is not None)

    @property
    def trials_share(self) -> float | None:
        """The share of the time that trials cost."""
        return sum(one.cost_s for one in self.trials) / sum(self.lasted_s) if any(self.lasted_s) else None

    @property
    def considered(self) -> float | None:
        """The share of a processor that considering plans took; None unless it was measured in all runs."""
        measured = len(self.considered_s) == len(self.lasted_s) and any(self.lasted_s)
        return sum(self.considered_s) / sum(self.lasted_s) if measured else None

    @property
    def probes_share(self) -> float | None:
        """The mean over links of the share of their capacity that probes took."""
        return mean(self.probed) if self.probed else None

    def off(self, percent: int) -> float | None:
        """Return the relative error that this percentage of the estimates does not exceed."""
        return percentile([abs(error) for error in self.errors], percent)

    @property
    def soon_where_sent(self) -> tuple[bool, ...]:
        """The steps of links that transfers passed meanwhile: whether each was noticed soon.

        A step of another link shows in probes alone.
        """
        return tuple(soon for soon, sent in zip(self.soon, self.sent_over, strict=True) if sent)

    @property
    def far_above(self) -> float | None:
        """The share of the estimates above FAR_ABOVE times the true rate."""
        return _share(error > FAR_ABOVE - 1 for error in self.errors)

    @property
    def far_below(self) -> float | None:
        """The share of the estimates below FAR_BELOW times the true rate."""
        return _share(error < FAR_BELOW - 1 for error in self.errors)

    def known_cells(self) -> dict[str, str]:
        """Return the cells on what the controller knew of links, by their headings."""
        return {
            "estimate error, median": text.percent(self.off(50)),
            "estimate error, 9 of 10 within": text.percent(self.off(90)),
            f"above {FAR_ABOVE:g} × the true rate": text.percent(self.far_above),
            f"below {FAR_BELOW:g} × the true rate": text.percent(self.far_below),
            "true rate in the interval": text.percent(_share(self.held)),
            "links in use known": text.percent(_share(self.known)),
            "steps noticed in time": f"{sum(self.in_time)} of {len(self.in_time)}",
            f"within {SOON_S:g} s": f"{sum(self.soon)} of {len(self.soon)}",
            "of these, with transfers meanwhile": f"{sum(self.soon_where_sent)} of {len(self.soon_where_sent)}",
        }

    def known_sentences(self) -> list[str]:
        """Return what the controller knew of links, one sentence per figure."""
        sentences = []
        if self.errors:
            sentences += [
                f"9 of 10 estimates of a link's rate were within {text.percent(self.off(90))} of the true rate, and "
                f"half of them within {text.percent(self.off(50))}.",
                f"{text.percent(self.far_above)} of the estimates were above {FAR_ABOVE:g} times the true rate, and "
                f"{text.percent(self.far_below)} below {FAR_BELOW:g} times.",
            ]
        if self.held:
            sentences.append(f"{text.percent(_share(self.held))} of the intervals held the true rate.")
        if self.known:
            sentences.append(f"The links in use were known for {text.percent(_share(self.known))} of the time.")
        if self.in_time:
            sentences.append(
                f"{sum(self.in_time)} of {text.count(len(self.in_time), 'step')} of the rates of links in use (by a "
                f"factor of {STEP:g} and more) were noticed within {NOTICED_S:g} s or {NOTICED_ROUNDS} rounds, and "
                f"{sum(self.soon)} of {len(self.soon)} within {SOON_S:g} s or a round trip."
            )
        return sentences

    def done_sentences(self) -> list[str]:
        """Return how predictions and swaps turned out, one sentence per figure."""
        sentences = []
        if self.calibration:
            low, middle, high = (percentile(self.calibration, percent) for percent in (10, 50, 90))
            sentences += [
                f"Predicted whole rounds were {middle:.2f} times as long as measured ones at the median, and between "
                f"{low:.2f} and {high:.2f} times in 8 of 10 cases.",
                f"{text.percent(_near(self.calibration))} of the predictions were within {text.percent(WITHIN)} of "
                f"the median of the next {AHEAD} rounds. So were {text.percent(_near(self.first_rounds))} of single "
                "rounds, which no prediction can surpass.",
            ]
        if self.swaps:
            outcome = "no rounds followed that show what they saved"
            if self.brought is not None:
                outcome = f"rounds became {text.saving(self.brought)}"
            sentences.append(
                f"{text.count(len(self.swaps), 'swap')} that no event forced promised to save "
                f"{text.percent(self.promised)} of a whole round at the median; {outcome}."
            )
        right, judged = self.right
        if judged:
            sentences.append(
                f"{right} of {text.count(judged, 'new plan')} were no slower than the old plan at the true rates."
            )
        if self.trials:
            sentences.append(
                f"{text.count(len(self.trials), 'trial')} of a plan ended with a return to the old plan, and took "
                f"{text.percent(self.trials_share, 1)} of the time."
            )
        return sentences

    def done_cells(self) -> dict[str, str]:
        """Return the cells on predictions and swaps, by their headings."""
        right, judged = self.right
        points = [percentile(self.calibration, percent) for percent in (10, 50, 90)]
        within = text.percent(WITHIN)
        return {
            "predicted ÷ measured": " ".join(text.UNKNOWN if point is None else f"{point:.2f}" for point in points),
            f"predictions within {within}": text.percent(_near(self.calibration)),
            f"single rounds within {within}": text.percent(_near(self.first_rounds)),
            "swaps": str(len(self.swaps)),
            "saving promised": text.percent(self.promised),
            "saving measured": text.percent(self.brought),
            "not slower": f"{right} of {judged}",
            "as promised": text.percent(self.as_promised),
            "shorter": text.percent(self.shorter),
            "lost trials": str(len(self.trials)),
            "time of trials": text.percent(self.trials_share, 1),
        }

    def cost_cells(self) -> dict[str, str]:
        """Return the cells on the cost of re-planning, by their headings."""
        return {
            "considering plans": text.percent(self.considered, 1),
            "probes, mean link": text.percent(self.probes_share, 2),
            "probes, most probed link": text.percent(max(self.probed, default=None), 2),
        }


def _share(values: Iterable[bool]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _near(ratios: Sequence[float]) -> float | None:
    return _share(abs(ratio - 1) <= WITHIN for ratio in ratios)
