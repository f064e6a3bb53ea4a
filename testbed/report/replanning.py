"""How well the controller knew the network, foresaw rounds and chose plans: a run's records against the truth.

The truth is what the emulator let links carry (`links.jsonl`) and how long rounds took (`rounds.jsonl`). A round counts
whole here, from the end of the one before to its own, compute included: that is what a plan makes longer or shorter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import islice, pairwise
from statistics import median
from typing import Any, ClassVar

from testbed.planning import PolicyError, SimulationError, View, ViewError, make_policy, simulate
from testbed.planning.coarse import coarse
from testbed.report import text
from testbed.report.estimates import estimate_errors
from testbed.report.record import LinkRecord, RunRecord
from testbed.report.series import StepFunction, rate_in_force
from testbed.telemetry.estimate import SILENCE_S

#: Rounds after a decision that its prediction is compared with.
AHEAD = 8
#: A prediction is good within this part of what came.
WITHIN = 0.2

#: An estimate so many times the truth makes a slow link look like a good one.
FAR_ABOVE = 1.5

#: A change of a rate by this factor is a step, as long as the rate then stays within the second factor of what it is
#: after it. It is noticed once the estimate is nearer to the new rate than to the old one; within so many seconds or
#: rounds is in time.
STEP, STAYS = 2.0, 1.4
NOTICED_S, NOTICED_ROUNDS = 3.0, 3


@dataclass(frozen=True, slots=True)
class SwapScore:
    """What a swap promised, as the part of a whole round that it saves, and what came of it.

    `brought` compares the median of the AHEAD rounds before with that of those after; `true` the two plans, simulated
    with the true rates of the rounds after. None where there were no such rounds.
    """

    epoch: int
    at_s: float
    promised: float | None
    brought: float | None
    true: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """Relative errors of estimates that were younger than SILENCE_S; whether those that came with an interval had the
    truth in it; of the links that plans used, each time, whether they were known; the seconds until steps were noticed,
    infinite where they were not, and whether that was in time; predicted over measured rounds, and the first of these
    over all, which is what the best foresight of one round would say; swaps.
    """

    errors: tuple[float, ...] = ()
    held: tuple[bool, ...] = ()
    known: tuple[bool, ...] = ()
    noticed_s: tuple[float, ...] = ()
    in_time: tuple[bool, ...] = ()
    calibration: tuple[float, ...] = ()
    first_rounds: tuple[float, ...] = ()
    swaps: tuple[SwapScore, ...] = field(default=())

    #: Headings, and what they mean: of what was known, and of what was foreseen and done.
    KNOWN: ClassVar[tuple[str, ...]] = (
        *(
            "half of the estimates within",
            "9 of 10 within",
            f"above {FAR_ABOVE:g} × the truth",
            "truth in the interval",
        ),
        *("links in use known", "large changes noticed"),
    )
    KNOWN_NOTES: ClassVar[tuple[str, ...]] = (
        f"estimates up to {SILENCE_S:g} s old are held against the mean rate over their samples' time",
        f"large changes are by {STEP:g} × and more, on links in use; in time is within {NOTICED_S:g} s or "
        f"{NOTICED_ROUNDS} rounds",
    )
    DONE: ClassVar[tuple[str, ...]] = (
        *("predicted ÷ measured", f"predictions within {WITHIN:.0%}", f"rounds within {WITHIN:.0%}", "swaps"),
        *("saving promised", "saving brought", "no slower"),
    )
    DONE_NOTES: ClassVar[tuple[str, ...]] = (
        f"a prediction is of whole rounds of the plan in force, and is held against the median of the next {AHEAD}: "
        "the quotients that 1 of 10 lies below, half, and 9 of 10; the very next round lies as near to that median as "
        "often as is said, which says how steady rounds were",
        "swaps are those that no event forced; one is no slower by the links' true rates afterwards",
    )

    @classmethod
    def together(cls, scores: Iterable[Score]) -> Score:
        """All of them as one."""
        scores = list(scores)
        return cls(**{f.name: tuple(v for one in scores for v in getattr(one, f.name)) for f in fields(cls)})

    @property
    def promised(self) -> float | None:
        """The median part of a round that swaps promised to save."""
        return _median([swap.promised for swap in self.swaps])

    @property
    def brought(self) -> float | None:
        """The median part of a round that swaps saved, as measured."""
        return _median([swap.brought for swap in self.swaps])

    @property
    def right(self) -> tuple[int, int]:
        """Swaps that were right by the true rates, and those of which that can be told."""
        found = [swap.true for swap in self.swaps if swap.true is not None]
        return sum(true >= 0 for true in found), len(found)

    def known_cells(self) -> list[str]:
        """A row under KNOWN."""
        off = [abs(error) for error in self.errors]
        return [
            text.percent(percentile(off, 0.5)),
            text.percent(percentile(off, 0.9)),
            text.percent(_share(error > FAR_ABOVE - 1 for error in self.errors)),
            text.percent(_share(self.held)),
            text.percent(_share(self.known)),
            f"{sum(self.in_time)} of {len(self.in_time)}",
        ]

    def known_sentences(self) -> list[str]:
        """What was known of links, a sentence a figure."""
        off = [abs(error) for error in self.errors]
        half, most = percentile(off, 0.5), percentile(off, 0.9)
        told = []
        if half is not None and most is not None:
            told.append(
                f"9 of 10 estimates of a link's rate were within {text.percent(most)} of the truth, and half of them "
                f"within {text.percent(half)}."
            )
            above = _share(error > FAR_ABOVE - 1 for error in self.errors)
            told.append(f"{text.percent(above)} of them were above {FAR_ABOVE:g} times the truth.")
        if self.held:
            told.append(f"{text.percent(_share(self.held))} of the intervals that came with estimates held the truth.")
        if self.known:
            told.append(f"Of the links in use, {text.percent(_share(self.known))} were known at a time.")
        if self.in_time:
            told.append(
                f"{sum(self.in_time)} of {text.count(len(self.in_time), 'large change')} of their rates "
                f"(by {STEP:g} times and more) were noticed within {NOTICED_S:g} s or {NOTICED_ROUNDS} rounds."
            )
        return told

    def done_sentences(self) -> list[str]:
        """How predictions came true and what swaps brought, a sentence a figure."""
        told = []
        low, middle, high = (percentile(self.calibration, share) for share in (0.1, 0.5, 0.9))
        if low is not None and middle is not None and high is not None:
            told.append(
                f"Predicted whole rounds were {middle:.2f} times as long as those that came, at the median, and 8 of "
                f"10 between {low:.2f} and {high:.2f} times."
            )
            near, steady = (
                text.percent(_share(abs(ratio - 1) <= WITHIN for ratio in ratios))
                for ratios in (self.calibration, self.first_rounds)
            )
            told.append(
                f"{near} of the predictions were within {text.percent(WITHIN)}; {steady} of single rounds lie as near "
                f"to the median of {AHEAD}, so that no prediction of a round can do better."
            )
        if self.swaps:
            swaps = f"{text.count(len(self.swaps), 'swap')} that no event forced promised"
            told.append(f"{swaps} to save {text.percent(self.promised)} of a whole round at the median; {self._came}.")
        right, judged = self.right
        if judged:
            told.append(
                f"{right} of {text.count(judged, 'new plan')} were no slower than the old one by the links' true rates."
            )
        return told

    @property
    def _came(self) -> str:
        if self.brought is None:
            return "no rounds came to compare them with"
        change = "shorter" if self.brought >= 0 else "longer"
        return f"rounds became {text.percent(abs(self.brought))} {change}"

    def done_cells(self) -> list[str]:
        """A row under DONE."""
        right, judged = self.right
        points = [percentile(self.calibration, share) for share in (0.1, 0.5, 0.9)]
        return [
            " ".join(text.UNKNOWN if point is None else f"{point:.2f}" for point in points),
            *(
                text.percent(_share(abs(ratio - 1) <= WITHIN for ratio in ratios))
                for ratios in (self.calibration, self.first_rounds)
            ),
            str(len(self.swaps)),
            text.percent(self.promised),
            text.percent(self.brought),
            f"{right} of {judged}",
        ]


def score(record: RunRecord) -> Score:
    """A run's. Records of earlier versions lack intervals, and say what was known only when plans were considered."""
    history = _RoundHistory(record)
    errors = estimate_errors(record).values()
    noticed = list(_steps_noticed(record, history))
    foreseen = list(_foreseen(record, history))
    return Score(
        errors=tuple(error for one in errors for error in one.off),
        held=tuple(held for one in errors for held in one.held),
        known=tuple(_known(record, history)),
        noticed_s=tuple(seconds for seconds, _ in noticed),
        in_time=tuple(in_time for _, in_time in noticed),
        calibration=tuple(predicted_s / median(rounds) for predicted_s, rounds in foreseen),
        first_rounds=tuple(rounds[0] / median(rounds) for _, rounds in foreseen),
        swaps=tuple(_swaps(record, history)),
    )


def whole_rounds(record: RunRecord) -> list[tuple[float, float]]:
    """When each round ended (seconds since training began), and how long it took whole; the first one has none."""
    ends = [record.since(one.finished_s) for one in record.rounds]
    return [(after, after - before) for before, after in pairwise(ends)]


def true_view(view: View, rates: Mapping[str, StepFunction], start_s: float, stop_s: float) -> View:
    """The network of a view as it truly was in the mean of that time. ViewError where a link carried nothing then."""
    links = {
        name: replace(link, rate_bps=rates[name].mean(start_s, stop_s)) if name in rates else link
        for name, link in view.links.items()
    }
    return View.of_network(view.members, links, view.routes, view.model_bytes)


def predictions(record: RunRecord) -> list[tuple[float, int, float]]:
    """When a plan was considered, the epoch of the one in force, and the seconds that its rounds were expected to take.

    Policies with a measure of their own say nothing of rounds.
    """
    return [
        (line["at_s"], line["last"], line["current_s"])
        for line in record.decisions
        if line.get("current_s") is not None and line.get("last") is not None and _of_rounds(line)
    ]


def promises(record: RunRecord) -> list[tuple[float, float]]:
    """When a swap was asked for, and the seconds that rounds were expected to take after it."""
    return [
        (line["at_s"], line["proposed_s"])
        for line in record.decisions
        if line.get("epoch") is not None and line.get("last") is not None and _of_rounds(line)
        if line.get("proposed_s") is not None
    ]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them is not above; None of nothing."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else None


class _RoundHistory:
    """A run's rounds by time: whole ones, as `whole_rounds` has them, their epochs, and what their plans used."""

    def __init__(self, record: RunRecord) -> None:
        self.rounds = whole_rounds(record)
        self.epochs = [one.epoch for one in record.rounds][1:]
        self._record = record
        self._ends = [record.since(one.finished_s) for one in record.rounds]
        # Routes are others only where something else than the time gave reason to consider a plan.
        news = [line for line in record.decisions if line.get("last") is None or line.get("reason") != "period"]
        self._views = [(line["at_s"], line["view"]) for line in news if "view" in line]
        self._links: dict[tuple[int, str], frozenset[str]] = {}

    def begun(self, at_s: float) -> int:
        """Which of the whole rounds is the first that began at a time or after it."""
        return bisect_left(self._ends, at_s)

    def following(self, at_s: float, epoch: int) -> list[float]:
        """The seconds of the AHEAD whole rounds, or as many as there are, that begin then or later under an epoch."""
        first = bisect_left(self.epochs, epoch, lo=min(self.begun(at_s), len(self.epochs)))
        last = bisect_right(self.epochs, epoch, lo=first)
        return [seconds for _, seconds in self.rounds[first : min(last, first + AHEAD)]]

    def used(self, at_s: float) -> frozenset[str]:
        """The WAN links that the plan in force at a time sends over."""
        number = bisect_left(self._ends, at_s)
        view = bisect_right(self._views, at_s, key=lambda one: one[0]) - 1
        if number == len(self._ends) or view < 0:
            return frozenset()
        key = self._record.rounds[number].epoch, self._views[view][1]
        if key not in self._links:
            self._links[key] = self._links_of(*key)
        return self._links[key]

    def _links_of(self, epoch: int, name: str) -> frozenset[str]:
        plan, view = self._record.plans.get(epoch), self._record.view(name)
        if plan is None or view is None:
            return frozenset()
        return frozenset(
            name
            for source, target, _ in plan.edges()
            for name in view.routes.get((source, target), ())
            if name in self._record.states
        )


def _known(record: RunRecord, history: _RoundHistory) -> Iterable[bool]:
    for look in record.estimates:
        estimates = look["links"]
        for link in history.used(look["at_s"]):
            yield link in estimates and estimates[link]["age_s"] <= SILENCE_S


def _steps_noticed(record: RunRecord, history: _RoundHistory) -> Iterable[tuple[float, bool]]:
    """For each step on a link in use: the seconds until it was noticed, and whether that was in time.

    Steps that another one follows before there was time, or after which the plan leaves the link alone, are left out.
    """
    times = [look["at_s"] for look in record.estimates]
    for link, states in record.states.items():
        for number, (before, after) in enumerate(pairwise(states), 1):
            if not (before.passes and after.passes) or _times(before, after) < STEP:
                continue
            until_s = _in_time_until(history, after.at_s)
            later = islice(states, number, None)
            left = (state.at_s for state in later if not state.passes or _times(after, state) > STAYS)
            ends_s = next(left, record.end_s)
            if ends_s < until_s or not {link} <= history.used(after.at_s) & history.used(until_s):
                continue
            middle_bps = (before.rate_bps * after.rate_bps) ** 0.5
            looks = islice(record.estimates, bisect_right(times, after.at_s), bisect_right(times, ends_s))
            seconds = next(
                (
                    look["at_s"] - after.at_s
                    for look in looks
                    if link in look["links"]
                    if (look["links"][link]["rate_bps"] < middle_bps) == (after.rate_bps < middle_bps)
                ),
                float("inf"),
            )
            yield seconds, after.at_s + seconds <= until_s


def _times(one: LinkRecord, other: LinkRecord) -> float:
    """How many times the rate of one the other's is, or the other way round: 1 and above."""
    return max(one.rate_bps / other.rate_bps, other.rate_bps / one.rate_bps)


def _in_time_until(history: _RoundHistory, at_s: float) -> float:
    """NOTICED_S later, or the end of NOTICED_ROUNDS that began after it if that is later; half a second to say so."""
    first = history.begun(at_s)
    ends = [end for end, _ in history.rounds[first : first + NOTICED_ROUNDS]]
    return max(at_s + NOTICED_S, ends[-1] if len(ends) == NOTICED_ROUNDS else at_s) + 0.5


def _foreseen(record: RunRecord, history: _RoundHistory) -> Iterable[tuple[float, Sequence[float]]]:
    """A prediction and the rounds that came, for each decision whose plan stayed for AHEAD more, or half as many."""
    for at_s, epoch, predicted_s in predictions(record):
        following = history.following(at_s, epoch)
        if len(following) >= AHEAD // 2:
            yield predicted_s, following


def _swaps(record: RunRecord, history: _RoundHistory) -> Iterable[SwapScore]:
    rates = {link: rate_in_force(states, record.end_s) for link, states in record.states.items()}
    for line in record.decisions:
        if line.get("epoch") is None or line.get("last") is None or not line.get("reason", "").startswith("period"):
            continue
        if line["epoch"] not in history.epochs or line["epoch"] not in record.plans or line["last"] not in record.plans:
            continue
        first = bisect_left(history.epochs, line["epoch"])
        before = [seconds for _, seconds in history.rounds[max(first - AHEAD, 0) : first]]
        after = history.rounds[first : first + AHEAD]
        promised = _saved(line.get("current_s"), line.get("proposed_s")) if _of_rounds(line) else None
        brought = _saved(median(before) if before else None, median(seconds for _, seconds in after))
        yield SwapScore(line["epoch"], line["at_s"], promised, brought, _true(record, line, rates, after))


def _true(
    record: RunRecord, line: Mapping[str, Any], rates: Mapping[str, StepFunction], after: Sequence[tuple[float, float]]
) -> float | None:
    """The part of a round that the new plan saves by the true rates of the rounds after the swap."""
    view = record.view(line["view"]) if "view" in line else None
    if view is None or len(after) < AHEAD // 2:
        return None
    try:
        true = true_view(view, rates, after[0][0] - after[0][1], after[-1][0])
        plans = (coarse(record.plans[line[which]], true.model_bytes) for which in ("last", "epoch"))
        old, new = (simulate(plan, true).seconds for plan in plans)
    except (ViewError, SimulationError):
        return None
    return 1 - new / old


def _of_rounds(line: Mapping[str, Any]) -> bool:
    """Whether a decision's seconds are those of rounds."""
    return _judged_by_rounds(line.get("policy") or "")


@cache
def _judged_by_rounds(policy: str) -> bool:
    """Whether a policy's plans are judged by how long rounds take: one may have a measure of its own."""
    try:
        return make_policy(policy, {}).measure is None
    except PolicyError:
        return True


def _saved(before: float | None, after: float | None) -> float | None:
    return None if not before or after is None else 1 - after / before


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _share(values: Iterable[bool]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None
