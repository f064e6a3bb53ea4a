"""How well the controller knew the network, foresaw rounds and chose plans: a run's records against the truth.

The truth is what the emulator let links carry (`links.jsonl`) and how long rounds took (`rounds.jsonl`). A round counts
whole here, from the end of the one before to its own, compute included: that is what a plan makes longer or shorter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import islice, pairwise
from statistics import mean, median
from typing import Any, ClassVar

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES, link_ends, link_name
from testbed.planning import PolicyError, SimulationError, View, ViewError, make_policy, simulate
from testbed.planning.simulate import coarse
from testbed.protocol import Arrived, Train
from testbed.report import text
from testbed.report.estimates import estimate_errors
from testbed.report.record import LinkRecord, RunRecord
from testbed.report.series import StepFunction, rate_in_force
from testbed.schema import ProtocolError, convert_to
from testbed.telemetry.estimate import SILENCE_S
from testbed.telemetry.store import read_records

#: Rounds after a decision that its prediction is compared with.
AHEAD = 8
#: A prediction is good within this part of what came, and the promise of a swap within the second one.
WITHIN, PROMISED_WITHIN = 0.2, 0.25

#: An estimate so many times the truth makes a slow link look like a good one, or a good one like a slow one.
FAR_ABOVE, FAR_BELOW = 1.5, 0.67

#: A change of a rate by this factor is a step, as long as the rate then stays within the second factor of what it is
#: after it. It is noticed once the estimate is nearer to the new rate than to the old one; within so many seconds or
#: rounds is in time. It is noticed soon within SOON_S, or within the link's round trip where that is longer.
STEP, STAYS = 2.0, 1.4
NOTICED_S, NOTICED_ROUNDS = 3.0, 3
SOON_S = 2.0

#: The reason of a decision to return to the plan before one that lost its trial.
RETURN = "return"


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
    #: Whether no other plan followed within AHEAD rounds.
    stayed: bool = False
    #: Of a plan that stayed: the median of its first AHEAD rounds over the promised seconds, less 1, and whether it is
    #: less than that of the AHEAD rounds before, as far as they ended after the newest step of a link in use.
    off: float | None = None
    shorter: bool | None = None


@dataclass(frozen=True, slots=True)
class TrialScore:
    """A plan that lost its trial: the plan before it returned.

    `cost_s` is what its rounds, and the first one of the plan that returned, took longer than those before.
    """

    epoch: int
    at_s: float
    cost_s: float


@dataclass(frozen=True, slots=True)
class Score:
    """Relative errors of estimates that were younger than SILENCE_S; whether those that came with an interval had the
    truth in it; of the links that plans used, each time, whether they were known; the seconds until steps were noticed,
    infinite where they were not, and whether that was in time; predicted over measured rounds, and the first of these
    over all, which is what the best foresight of one round would say; swaps, without trials and their returns.
    """

    errors: tuple[float, ...] = ()
    held: tuple[bool, ...] = ()
    known: tuple[bool, ...] = ()
    noticed_s: tuple[float, ...] = ()
    in_time: tuple[bool, ...] = ()
    calibration: tuple[float, ...] = ()
    first_rounds: tuple[float, ...] = ()
    swaps: tuple[SwapScore, ...] = ()
    trials: tuple[TrialScore, ...] = ()
    #: Of each step, whether it was noticed soon.
    soon: tuple[bool, ...] = ()
    #: Of each run: the seconds that it lasted, and those of a processor that considering plans took, where that was
    #: measured.
    lasted_s: tuple[float, ...] = ()
    considered_s: tuple[float, ...] = ()
    #: Of each link of each run, the part of what it could carry that probes took.
    probed: tuple[float, ...] = ()

    #: Headings, and what they mean: of what was known, and of what was foreseen and done.
    KNOWN: ClassVar[tuple[str, ...]] = (
        *("half of the estimates within", "9 of 10 within", f"above {FAR_ABOVE:g} × the truth"),
        *(f"below {FAR_BELOW:g} × the truth", "truth in the interval", "links in use known"),
        *("large changes noticed", f"within {SOON_S:g} s"),
    )
    KNOWN_NOTES: ClassVar[tuple[str, ...]] = (
        f"estimates up to {SILENCE_S:g} s old are held against the mean rate over their samples' time",
        f"large changes are by {STEP:g} × and more, on links in use; in time is within {NOTICED_S:g} s or "
        f"{NOTICED_ROUNDS} rounds; within {SOON_S:g} s: or within the link's round trip, where that is longer",
    )
    DONE: ClassVar[tuple[str, ...]] = (
        *("predicted ÷ measured", f"predictions within {WITHIN:.0%}", f"rounds within {WITHIN:.0%}", "swaps"),
        *("saving promised", "saving brought", "no slower"),
        *("as promised", "shorter", "trials", "their time"),
    )
    DONE_NOTES: ClassVar[tuple[str, ...]] = (
        f"a prediction is of whole rounds of the plan in force, and is held against the median of the next {AHEAD}: "
        "the quotients that 1 of 10 lies below, half, and 9 of 10; the very next round lies as near to that median as "
        "often as is said, which says how steady rounds were",
        "swaps are those that no event forced; one is no slower by the links' true rates afterwards",
        f"of those that stayed for {AHEAD} rounds: as promised, if their median is within {PROMISED_WITHIN:.0%} of it, "
        "and shorter than the rounds before, since the newest step of a link in use",
        "trials: plans that did not stay, since the one before took less; they are no swaps; their time: what their "
        "rounds took longer, of the whole run",
    )
    COST: ClassVar[tuple[str, ...]] = ("considering plans", "probes", "of the most probed link")
    COST_NOTES: ClassVar[tuple[str, ...]] = (
        "considering: a part of a processor, of the time that runs lasted; simulated time takes none of a processor",
        "probes: a part of what links could carry",
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

    @property
    def as_promised(self) -> float | None:
        """The part of the swaps that stayed whose rounds were about as long as promised."""
        return _share(abs(swap.off) <= PROMISED_WITHIN for swap in self.swaps if swap.off is not None)

    @property
    def shorter(self) -> float | None:
        """The part of the swaps that stayed whose rounds were shorter than those before."""
        return _share(swap.shorter for swap in self.swaps if swap.shorter is not None)

    @property
    def trials_share(self) -> float | None:
        """The part of the time that trials cost."""
        return sum(one.cost_s for one in self.trials) / sum(self.lasted_s) if self.lasted_s else None

    @property
    def considered(self) -> float | None:
        """The part of a processor that considering plans took, where that was measured."""
        measured = len(self.considered_s) == len(self.lasted_s) > 0
        return sum(self.considered_s) / sum(self.lasted_s) if measured else None

    @property
    def probes_share(self) -> float | None:
        """The part of what links could carry that probes took, in the mean over links."""
        return mean(self.probed) if self.probed else None

    def off(self, share: float) -> float | None:
        """The relative error that this share of the estimates does not exceed."""
        return percentile([abs(error) for error in self.errors], share)

    @property
    def far_above(self) -> float | None:
        """The part of the estimates that make a link look much faster than it is."""
        return _share(error > FAR_ABOVE - 1 for error in self.errors)

    @property
    def far_below(self) -> float | None:
        """The part of the estimates that make a link look much slower than it is."""
        return _share(error < FAR_BELOW - 1 for error in self.errors)

    def known_cells(self) -> list[str]:
        """A row under KNOWN."""
        return [
            text.percent(self.off(0.5)),
            text.percent(self.off(0.9)),
            text.percent(self.far_above),
            text.percent(self.far_below),
            text.percent(_share(self.held)),
            text.percent(_share(self.known)),
            f"{sum(self.in_time)} of {len(self.in_time)}",
            f"{sum(self.soon)} of {len(self.soon)}",
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
            told.append(
                f"{text.percent(self.far_above)} of them were above {FAR_ABOVE:g} times the truth, and "
                f"{text.percent(self.far_below)} below {FAR_BELOW:g} times."
            )
        if self.held:
            told.append(f"{text.percent(_share(self.held))} of the intervals that came with estimates held the truth.")
        if self.known:
            told.append(f"Of the links in use, {text.percent(_share(self.known))} were known at a time.")
        if self.in_time:
            told.append(
                f"{sum(self.in_time)} of {text.count(len(self.in_time), 'large change')} of their rates "
                f"(by {STEP:g} times and more) were noticed within {NOTICED_S:g} s or {NOTICED_ROUNDS} rounds, and "
                f"{sum(self.soon)} of {len(self.soon)} within {SOON_S:g} s or a round trip."
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
        if self.trials:
            told.append(
                f"{text.count(len(self.trials), 'trial')} of a plan ended with the old plan's return, and took "
                f"{text.percent(self.trials_share, 1)} of the time."
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
            text.percent(self.as_promised),
            text.percent(self.shorter),
            str(len(self.trials)),
            text.percent(self.trials_share, 1),
        ]

    def cost_cells(self) -> list[str]:
        """A row under COST."""
        return [
            text.percent(self.considered, 1),
            text.percent(self.probes_share, 2),
            text.percent(max(self.probed, default=None), 2),
        ]


def score(record: RunRecord) -> Score:
    """A run's. Records of earlier versions lack intervals, and say what was known only when plans were considered."""
    history = _RoundHistory(record)
    errors = estimate_errors(record).values()
    noticed = list(_steps_noticed(record, history))
    foreseen = list(_foreseen(record, history))
    adopted = list(_adopted(record, history))
    trials = list(_trials(record, history, adopted))
    return Score(
        errors=tuple(error for one in errors for error in one.off),
        held=tuple(held for one in errors for held in one.held),
        known=tuple(_known(record, history)),
        noticed_s=tuple(seconds for seconds, _, _ in noticed),
        in_time=tuple(in_time for _, in_time, _ in noticed),
        soon=tuple(soon for _, _, soon in noticed),
        calibration=tuple(predicted_s / median(rounds) for predicted_s, rounds in foreseen),
        first_rounds=tuple(rounds[0] / median(rounds) for _, rounds in foreseen),
        swaps=tuple(_swaps(record, history, adopted, {one.epoch for one in trials})),
        trials=tuple(trials),
        lasted_s=(record.end_s,),
        considered_s=tuple(_considered_s(record)),
        probed=tuple(_probed(record, history)),
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

    def stayed(self, epoch: int) -> bool:
        """Whether the AHEAD rounds from the first one under an epoch on, or half as many at the run's end, are all
        under it."""
        first = bisect_left(self.epochs, epoch)
        its = self.epochs[first : first + AHEAD]
        return len(its) >= AHEAD // 2 and set(its) == {epoch}

    def route(self, at_s: float, source: str, target: str) -> tuple[str, ...]:
        """The links from one member to another at a time, as the newest view before it has them."""
        number = bisect_right(self._views, at_s, key=lambda one: one[0]) - 1
        view = self._record.view(self._views[max(number, 0)][1]) if self._views else None
        return view.routes.get((source, target), ()) if view else ()

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


def _steps_noticed(record: RunRecord, history: _RoundHistory) -> Iterable[tuple[float, bool, bool]]:
    """For each step on a link in use: the seconds until it was noticed, whether that was in time, and whether soon.

    Steps that another one follows before there was time are left out, and those after which the plan leaves the link
    alone before they are noticed.
    """
    times = [look["at_s"] for look in record.estimates]
    for link, states in record.states.items():
        for number, (before, after) in enumerate(pairwise(states), 1):
            if not _is_step(before, after):
                continue
            until_s = _in_time_until(history, after.at_s)
            later = islice(states, number, None)
            left = (state.at_s for state in later if not state.passes or _times(after, state) > STAYS)
            ends_s = next(left, record.end_s)
            if ends_s < until_s or link not in history.used(after.at_s):
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
            if link not in history.used(min(until_s, after.at_s + seconds)):
                continue
            yield seconds, after.at_s + seconds <= until_s, seconds <= max(SOON_S, _rtt_s(record, link, after))


def _rtt_s(record: RunRecord, link: str, state: LinkRecord) -> float:
    """A link's round trip, its queue empty; of one without a way back, twice its delay."""
    way_back = record.states.get(link_name(*reversed(link_ends(link))), (state,))
    return state.delay_s + next((one.delay_s for one in reversed(way_back) if one.at_s <= state.at_s), state.delay_s)


def _steps(record: RunRecord) -> Iterable[tuple[float, str]]:
    """When a link's rate made a step, and the link."""
    for link, states in record.states.items():
        yield from ((after.at_s, link) for before, after in pairwise(states) if _is_step(before, after))


def _is_step(before: LinkRecord, after: LinkRecord) -> bool:
    return before.passes and after.passes and _times(before, after) >= STEP


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


def _adopted(record: RunRecord, history: _RoundHistory) -> Iterable[Mapping[str, Any]]:
    """The decisions that put another plan in force, in order."""
    for line in record.decisions:
        if line.get("epoch") is None or line.get("last") is None or line["epoch"] not in history.epochs:
            continue
        if line["epoch"] in record.plans and line["last"] in record.plans:
            yield line


def _trials(record: RunRecord, history: _RoundHistory, adopted: Sequence[Mapping[str, Any]]) -> Iterable[TrialScore]:
    """Each trial that was lost: a decision to return says which, and the seconds of a round that it had to beat."""
    tried = {line["epoch"]: line for line in adopted}
    for back in adopted:
        if back.get("reason") != RETURN or back["last"] not in tried:
            continue
        first, last = (bisect_left(history.epochs, back[which]) for which in ("last", "epoch"))
        longer_s = sum(seconds - back["proposed_s"] for _, seconds in history.rounds[first : last + 1])
        yield TrialScore(back["last"], tried[back["last"]]["at_s"], max(longer_s, 0.0))


def _swaps(
    record: RunRecord, history: _RoundHistory, adopted: Sequence[Mapping[str, Any]], trials: Set[int]
) -> Iterable[SwapScore]:
    rates = {link: rate_in_force(states, record.end_s) for link, states in record.states.items()}
    steps_s = [at_s for at_s, link in _steps(record) if link in history.used(at_s)]
    for line in adopted:
        if not _unforced(line) or line["epoch"] in trials:
            continue
        first = bisect_left(history.epochs, line["epoch"])
        rounds = history.rounds[max(first - AHEAD, 0) : first]
        before = [seconds for _, seconds in rounds]
        after = history.rounds[first : first + AHEAD]
        took_s = median(seconds for _, seconds in after)
        promised, off, stayed = None, None, history.stayed(line["epoch"])
        if _of_rounds(line):
            promised = _saved(line.get("current_s"), line.get("proposed_s"))
            off = took_s / line["proposed_s"] - 1 if stayed and line.get("proposed_s") else None
        brought = _saved(median(before) if before else None, took_s)
        true = _true(record, line, rates, after)
        stepped_s = max((at_s for at_s in steps_s if at_s <= line["at_s"]), default=0.0)
        since = [seconds for ended_s, seconds in rounds if ended_s > stepped_s] or before[-1:]
        shorter = took_s < median(since) if stayed and since else None
        yield SwapScore(line["epoch"], line["at_s"], promised, brought, true, stayed, off, shorter)


def _unforced(line: Mapping[str, Any]) -> bool:
    """Whether no event forced a decision."""
    return str(line.get("reason", "")).startswith("period")


def _considered_s(record: RunRecord) -> list[float]:
    """The seconds of a processor that decisions took; nothing of a run that did not measure them."""
    seconds = [line["considered_s"] for line in record.decisions if line.get("considered_s") is not None]
    return [sum(seconds)] if seconds and not record.manifest.get("simulated") else []


def _probed(record: RunRecord, history: _RoundHistory) -> list[float]:
    """Of each link, the part of what it could carry that probes took: of those that arrived."""
    frames = MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES
    sent: defaultdict[str, float] = defaultdict(float)
    for member, peer, train in _arrivals(record):
        if train.is_probe:
            for link in history.route(record.since(train.began_s), peer, member):
                sent[link] += (train.bytes + TCP_PAYLOAD_BYTES) * frames  # the first packet is not among the bytes
    found = []
    for link, states in record.states.items():
        could = rate_in_force(states, record.end_s).mean(0.0, record.end_s) * record.end_s / 8
        if could > 0:
            found.append(sent[link] / could)
    return found


def _arrivals(record: RunRecord) -> Iterable[tuple[str, str, Train]]:
    """What came in, by its receiver and its sender: as members told with their reports, and during long rounds."""
    told = [(report.member, report.arrivals) for report in record.reports]
    for line in read_records(record.path / "arrivals.jsonl"):
        try:
            told.append((line["member"], convert_to(Arrived, {k: line[k] for k in ("member", "arrivals")}).arrivals))
        except (KeyError, ProtocolError):
            continue  # what a crash cut short
    return ((member, peer, train) for member, its in told for peer, trains in its.items() for train in trains)


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
