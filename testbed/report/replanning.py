"""Scores a run's re-planning: how well its controller knew the network, predicted rounds and chose plans.

Estimates are compared with the rates in force (`links.jsonl`), predictions with the duration of rounds
(`rounds.jsonl`). Rounds are whole rounds here, from the end of one to the end of the next, computing included: a plan
makes that time longer or shorter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from itertools import chain, islice, pairwise
from math import inf
from statistics import median
from typing import Any

import numpy as np

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES, link_ends, link_name
from testbed.planning import PolicyError, SimulationError, View, ViewError, make_policy, simulate
from testbed.planning.simulate import coarse
from testbed.protocol import Arrived, Train
from testbed.report.record import RunRecord
from testbed.report.run_files import LinkRecord
from testbed.report.score import AHEAD, NOTICED_ROUNDS, NOTICED_S, SOON_S, STEP, Score, SwapScore, TrialScore
from testbed.report.series import StepFunction, estimate_errors, rate_in_force
from testbed.schema import ProtocolError, convert_to
from testbed.telemetry.estimate import SILENCE_S
from testbed.telemetry.store import read_records

#: A step is a change by STEP after which the rate stays within this factor. It is noticed once the estimate is nearer
#: to the new rate than to the old one.
STAYS = 1.4


def score(record: RunRecord) -> Score:
    """Return the score of a run.

    Records of earlier versions lack intervals, and have estimates only of the times at which plans were considered.
    """
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
        noticed_s=tuple(seconds for seconds, _, _, _ in noticed),
        in_time=tuple(in_time for _, in_time, _, _ in noticed),
        soon=tuple(soon for _, _, soon, _ in noticed),
        sent_over=tuple(sent for _, _, _, sent in noticed),
        calibration=tuple(predicted_s / median(rounds) for predicted_s, rounds in foreseen),
        first_rounds=tuple(rounds[0] / median(rounds) for _, rounds in foreseen),
        swaps=tuple(_swaps(record, history, adopted, {epoch for one in trials for epoch in (one.epoch, one.returned)})),
        trials=tuple(trials),
        lasted_s=(record.end_s,),
        considered_s=tuple(_considered_s(record)),
        probed=tuple(_probed(record, history)),
    )


def whole_rounds(record: RunRecord) -> list[tuple[float, float]]:
    """Return (end in seconds since training began, whole seconds) of each round but the first."""
    ends = [record.since(one.finished_s) for one in record.rounds]
    return [(after, after - before) for before, after in pairwise(ends)]


def true_view(view: View, rates: Mapping[str, StepFunction], start_s: float, stop_s: float) -> View:
    """Return a view with the mean rates from `start_s` to `stop_s`. Raises: ViewError: a link carried nothing then."""
    links = {
        name: replace(link, rate_bps=rates[name].mean(start_s, stop_s)) if name in rates else link
        for name, link in view.links.items()
    }
    return View.of_network(view.members, links, view.routes, view.model_bytes)


def predictions(record: RunRecord) -> list[tuple[float, int, float]]:
    """Return (time, epoch of the plan in force, predicted seconds of its whole rounds) of each consideration of plans.

    A policy with a measure of its own predicts no rounds.
    """
    return [
        (line["at_s"], line["last"], line["current_s"])
        for line in record.decisions
        if line.get("current_s") is not None and line.get("last") is not None and _of_rounds(line)
    ]


def promises(record: RunRecord) -> list[tuple[float, float]]:
    """Return (time, promised seconds of whole rounds) of each swap."""
    return [
        (line["at_s"], line["proposed_s"])
        for line in record.decisions
        if line.get("epoch") is not None and line.get("last") is not None and _of_rounds(line)
        if line.get("proposed_s") is not None
    ]


class _RoundHistory:
    """A run's whole rounds by time, with their epochs and the links that their plans used."""

    def __init__(self, record: RunRecord) -> None:
        self.rounds = whole_rounds(record)
        self.epochs = [one.epoch for one in record.rounds][1:]
        self._record = record
        self._ends = [record.since(one.finished_s) for one in record.rounds]
        # Routes change only where an event, and not the period, was the reason to consider plans.
        news = [line for line in record.decisions if line.get("last") is None or line.get("reason") != "period"]
        self._views = [(line["at_s"], line["view"]) for line in news if "view" in line]
        self._links: dict[tuple[int, str], frozenset[str]] = {}

    def begun(self, at_s: float) -> int:
        """Return the index of the first whole round that began at a time or after it."""
        return bisect_left(self._ends, at_s)

    def following(self, at_s: float, epoch: int) -> list[float]:
        """Return the seconds of the next AHEAD whole rounds under an epoch, or of fewer where it had no more."""
        first = bisect_left(self.epochs, epoch, lo=min(self.begun(at_s), len(self.epochs)))
        last = bisect_right(self.epochs, epoch, lo=first)
        return [seconds for _, seconds in self.rounds[first : min(last, first + AHEAD)]]

    def stayed(self, epoch: int) -> bool:
        """Return whether an epoch lasted for AHEAD rounds, or for half as many at the end of the run."""
        first = bisect_left(self.epochs, epoch)
        its = self.epochs[first : first + AHEAD]
        return len(its) >= AHEAD // 2 and set(its) == {epoch}

    def route(self, at_s: float, source: str, target: str) -> tuple[str, ...]:
        """Return the links on the route between two members at a time, by the newest view recorded before it."""
        return self._routes(at_s).get((source, target), ())

    def widest_bps(self, at_s: float, link: str) -> float:
        """Return the highest rate that the other links of any path over `link` carry at a time."""
        routes = {route for route in self._routes(at_s).values() if link in route}
        return max(
            (min((self._rate_bps(at_s, its) for its in route if its != link), default=inf) for route in routes),
            default=inf,
        )

    def _routes(self, at_s: float) -> Mapping[tuple[str, str], tuple[str, ...]]:
        number = bisect_right(self._views, at_s, key=lambda one: one[0]) - 1
        view = self._record.view(self._views[max(number, 0)][1]) if self._views else None
        return view.routes if view else {}

    def _rate_bps(self, at_s: float, link: str) -> float:
        states = self._record.states.get(link, ())
        number = bisect_right(states, at_s, key=lambda state: state.at_s) - 1
        if number < 0:
            return inf
        return states[number].rate_bps if states[number].passes else 0.0

    def used(self, at_s: float) -> frozenset[str]:
        """Return the WAN links that the plan in force at a time sends over."""
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


def _steps_noticed(record: RunRecord, history: _RoundHistory) -> Iterable[tuple[float, bool, bool, bool]]:
    """Yield (seconds until it was noticed, in time, soon, whether transfers passed) of each step of a link in use.

    A step is left out where another step follows before it could be noticed in time, where the plan leaves the link
    before the step is noticed, and where other links of every path over it are so slow that the path makes no step. So
    is a step that was not noticed where the record of estimates ends before the step could be noticed in time.
    """
    times = [look["at_s"] for look in record.estimates]
    passed_s = _passed_s(record, history)
    for link, states in record.states.items():
        for number, (before, after) in enumerate(pairwise(states), 1):
            if not _is_step(before, after):
                continue
            middle_bps = (before.rate_bps * after.rate_bps) ** 0.5
            widest_bps = max(history.widest_bps(at_s, link) for at_s in (after.at_s, after.at_s + SOON_S))
            on_path = (replace(state, rate_bps=min(state.rate_bps, widest_bps)) for state in (before, after))
            if widest_bps < min(after.rate_bps, middle_bps) or not _is_step(*on_path):
                continue
            until_s = _in_time_until(history, after.at_s)
            later = islice(states, number, None)
            left = (state.at_s for state in later if not state.passes or _times(after, state) > STAYS)
            ends_s = next(left, record.end_s)
            if ends_s < until_s or link not in history.used(after.at_s):
                continue
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
            if seconds == float("inf") and until_s > max(times, default=0.0):
                continue  # the record of estimates ends earlier: it has a greatest length
            if link not in history.used(min(until_s, after.at_s + seconds)):
                continue
            soon_s = max(SOON_S, _rtt_s(record, link, after))
            first, last = (bisect_right(passed_s[link], at_s) for at_s in (after.at_s, after.at_s + soon_s))
            yield seconds, after.at_s + seconds <= until_s, seconds <= soon_s, last > first


def _passed_s(record: RunRecord, history: _RoundHistory) -> defaultdict[str, list[float]]:
    """Return, for each link, the times in order at which trains of members' transfers over it had arrived."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for member, peer, train in _arrivals(record):
        if not train.is_probe:
            at_s = record.since(train.began_s + train.seconds)
            for link in history.route(at_s, peer, member):
                found[link].append(at_s)
    for moments in found.values():
        moments.sort()
    return found


def _rtt_s(record: RunRecord, link: str, state: LinkRecord) -> float:
    """Return a link's round trip in seconds without queues; twice its delay for a link without a way back."""
    way_back = record.states.get(link_name(*reversed(link_ends(link))), (state,))
    return state.delay_s + next((one.delay_s for one in reversed(way_back) if one.at_s <= state.at_s), state.delay_s)


def _steps(record: RunRecord) -> Iterable[tuple[float, str]]:
    for link, states in record.states.items():
        yield from ((after.at_s, link) for before, after in pairwise(states) if _is_step(before, after))


def _is_step(before: LinkRecord, after: LinkRecord) -> bool:
    return before.passes and after.passes and _times(before, after) >= STEP


def _times(one: LinkRecord, other: LinkRecord) -> float:
    return max(one.rate_bps / other.rate_bps, other.rate_bps / one.rate_bps)


def _in_time_until(history: _RoundHistory, at_s: float) -> float:
    """Return the latest time at which a notice of a step at `at_s` is in time.

    This is NOTICED_S later, or the end of the next NOTICED_ROUNDS rounds if that is later still, plus half a second
    until the notice is recorded.
    """
    first = history.begun(at_s)
    ends = [end for end, _ in history.rounds[first : first + NOTICED_ROUNDS]]
    return max(at_s + NOTICED_S, ends[-1] if len(ends) == NOTICED_ROUNDS else at_s) + 0.5


def _foreseen(record: RunRecord, history: _RoundHistory) -> Iterable[tuple[float, Sequence[float]]]:
    for at_s, epoch, predicted_s in predictions(record):
        following = history.following(at_s, epoch)
        if len(following) >= AHEAD // 2:
            yield predicted_s, following


def _adopted(record: RunRecord, history: _RoundHistory) -> Iterable[Mapping[str, Any]]:
    for line in record.decisions:
        if line.get("epoch") is None or line.get("last") is None or line["epoch"] not in history.epochs:
            continue
        if line["epoch"] in record.plans and line["last"] in record.plans:
            yield line


def _trials(record: RunRecord, history: _RoundHistory, adopted: Sequence[Mapping[str, Any]]) -> Iterable[TrialScore]:
    """Yield the lost trials.

    These are the plans whose rounds were no shorter than the rounds before, and from which the controller returned to
    the plan before within AHEAD rounds.
    """
    tried = {line["epoch"]: line for line in adopted if _unforced(line)}
    for back in filter(_unforced, adopted):
        if back["last"] not in tried or history.stayed(back["last"]):
            continue
        if record.plans[back["epoch"]].shape() != record.plans[tried[back["last"]]["last"]].shape():
            continue
        first, last = (bisect_left(history.epochs, back[which]) for which in ("last", "epoch"))
        before = [seconds for _, seconds in history.rounds[max(first - AHEAD, 0) : first]]
        its = [seconds for _, seconds in history.rounds[first:last]]
        if before and its and median(its) < median(before):
            continue  # it was left because the network changed
        usual_s = back["proposed_s"] if _of_rounds(back) else median(before or its)
        longer_s = sum(seconds - usual_s for _, seconds in history.rounds[first : last + 1])
        yield TrialScore(back["last"], back["epoch"], tried[back["last"]]["at_s"], max(longer_s, 0.0))


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
            promised = _saving(line.get("current_s"), line.get("proposed_s"))
            off = took_s / line["proposed_s"] - 1 if stayed and line.get("proposed_s") else None
        brought = _saving(median(before) if before else None, took_s)
        true = _true(record, line, rates, after)
        stepped_s = max((at_s for at_s in steps_s if at_s <= line["at_s"]), default=0.0)
        since = [seconds for ended_s, seconds in rounds if ended_s > stepped_s] or before[-1:]
        shorter = took_s < median(since) if stayed and since else None
        yield SwapScore(line["epoch"], line["at_s"], promised, brought, true, stayed, off, shorter)


def _unforced(line: Mapping[str, Any]) -> bool:
    """Return whether a decision was made because its period was over, and not forced by an event."""
    return str(line.get("reason", "")).startswith("period")


def _considered_s(record: RunRecord) -> list[float]:
    """Return the processor seconds of all decisions, as a list of one; empty if they were not measured."""
    seconds = [line["considered_s"] for line in record.decisions if line.get("considered_s") is not None]
    return [sum(seconds)] if seconds and not record.manifest.get("simulated") else []


def _probed(record: RunRecord, history: _RoundHistory) -> list[float]:
    """Return, for each link, the share of its capacity that the probes which arrived took."""
    frames = MTU_FRAME_BYTES / TCP_PAYLOAD_BYTES
    sent: defaultdict[str, float] = defaultdict(float)
    for member, peer, train in _arrivals(record):
        if train.is_probe:
            for link in history.route(record.since(train.began_s), peer, member):
                sent[link] += (train.bytes + TCP_PAYLOAD_BYTES) * frames  # the first packet is not among the bytes
    found = []
    for link, states in record.states.items():
        whole = np.array([0.0, record.end_s])  # without the times for which the link was down or missing
        could = float(rate_in_force(states, record.end_s).means(whole)[0]) * record.end_s / 8
        if could > 0:
            found.append(sent[link] / could)
    return found


def _arrivals(record: RunRecord) -> Iterable[tuple[str, str, Train]]:
    """Yield (receiver, sender, train) of all arrivals, from the reports and from the messages during rounds."""
    for line in chain.from_iterable(read_records(record.path / name) for name in ("rounds.jsonl", "arrivals.jsonl")):
        try:
            told = convert_to(Arrived, {name: line[name] for name in ("member", "arrivals")})
        except (KeyError, ProtocolError):
            continue  # a crash cut the record short, or an earlier version recorded no trains
        for peer, trains in told.arrivals.items():
            for train in trains:
                yield told.member, peer, train


def _true(
    record: RunRecord, line: Mapping[str, Any], rates: Mapping[str, StepFunction], after: Sequence[tuple[float, float]]
) -> float | None:
    """Return the saving of the new plan, with both plans simulated at the true rates of the rounds after the swap."""
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
    """Return whether a decision's seconds are of whole rounds. Earlier versions recorded the policy's name alone."""
    own = line.get("own_measure")
    return _judged_by_rounds(line.get("policy") or "") if own is None else not own


@cache
def _judged_by_rounds(policy: str) -> bool:
    """Return whether a policy judges plans by the seconds of rounds, and not by a measure of its own."""
    try:
        return make_policy(policy, {}).measure is None
    except PolicyError:
        return True


def _saving(before: float | None, after: float | None) -> float | None:
    return None if not before or after is None else 1 - after / before
