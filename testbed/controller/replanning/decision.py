"""The decision whether another plan is worth a swap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median

from testbed.controller.replanning.prediction import PlanJudge
from testbed.plan import Plan
from testbed.planning import View

#: Seconds for which the known rates of a network are assumed to hold. Savings after that do not count for a swap.
HOLDS_S = 20.0

#: One of a plan's last NEWEST rounds is free of random stalls.
NEWEST = 2

#: A plan whose rounds take more than this many times the promised seconds is judged at once.
BROKEN = 1.5

#: If the newest rounds of a plan all take more than this many times the predicted seconds, the prediction is wrong:
#: after a link fell to a seventh, TCP lost so much that rounds of 1.6 s by the simulation took 2 to 7 s for 25 s. If a
#: link fell in the last LATELY rounds, NEWEST rounds prove that, else UNEXPLAINED rounds do: on links that never
#: change, BBR's pauses and losses delay two or three rounds in a row. In `constant-5` (seed 112) rounds of 1.4 and
#: 1.3 s among rounds of 0.84 s led to a swap.
MISJUDGED = 1.5
LATELY, UNEXPLAINED = 10, 4

#: The cost of a swap as a part of a round before one was measured: new connections begin slowly.
COST = 0.5

#: An elastic run starts the current round again under an adopted plan if a round under the old plan is predicted to
#: take this many times a round under the new one, and these seconds more. Without that, a plan that is adopted during a
#: slow round is followed two rounds later: members have sent their contributions, so the round can't agree on it.
RESTART, RESTART_S = 1.5, 1.0

#: A policy's own measure of what a plan costs under a view.
Measure = Callable[[View, Plan], float]


@dataclass(frozen=True, slots=True)
class SwapRules:
    """The run's rules for swaps."""

    #: The part of a round that a swap must save.
    margin: float
    #: The rounds for which a plan stays in force at least.
    dwell_rounds: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision on a proposed plan. Its seconds are whole rounds, or costs by the policy's own measure."""

    adopt: bool
    why: str
    #: The seconds under the plan in force; None if it uses an edge that is gone, or if there is only one plan.
    current_s: float | None
    #: The seconds under the proposed plan; infinite if no plan was proposed.
    proposed_s: float
    #: The predicted seconds under the plan in force, even if its rounds took less so far; None if it was not simulated.
    predicted_s: float | None = None

    def restarts(self, performance: PlanPerformance) -> bool:
        """Return whether a link fell, and the current round should start again under the adopted plan."""
        if self.predicted_s is None or not performance.fell:
            return False
        return self.predicted_s > RESTART * self.proposed_s + RESTART_S


@dataclass(frozen=True, slots=True)
class PlanPerformance:
    """The rounds and swaps so far under the plan in force."""

    #: Complete rounds under the plan.
    rounds: int
    #: Seconds of the newest whole rounds, at most UNEXPLAINED, from the end of one to the end of the next. The first
    #: after a swap is left out.
    whole_s: tuple[float, ...] = ()
    #: Seconds since the last round ended: the current round takes at least as long.
    since_last_s: float = 0.0
    #: The complete rounds since a link last fell.
    since_fall: float = float("inf")
    #: The rounds still to come in the run.
    rounds_left: float = float("inf")
    #: Seconds by which each of the newest swaps made a round longer.
    swaps_s: tuple[float, ...] = ()
    #: The seconds of a round that were predicted when the plan was adopted.
    promised_s: float = float("inf")
    #: The fraction of promised savings that recent swaps delivered, in (0, 1].
    delivered: float = 1.0

    @property
    def newest_s(self) -> tuple[float, ...]:
        """Seconds of the NEWEST newest whole rounds."""
        return self.whole_s[-NEWEST:]

    @property
    def fell(self) -> bool:
        """True if a link fell in the NEWEST newest rounds."""
        return self.since_fall < NEWEST

    @property
    def fell_lately(self) -> bool:
        """True if a link fell in the LATELY newest rounds."""
        return self.since_fall < LATELY

    @property
    def broken(self) -> bool:
        """True if rounds are much longer than promised."""
        return bool(self.newest_s) and min(self.newest_s) > BROKEN * self.promised_s

    @property
    def slow(self) -> bool:
        """True if the current round takes longer already than the newest ones did."""
        return bool(self.newest_s) and self.since_last_s > max(self.newest_s)

    @property
    def measured_s(self) -> float:
        """The measured seconds of a round; infinite before any whole round.

        If a link fell, this is the longest of the newest rounds and the current one. Otherwise it is the shortest of
        the newest rounds, since a loss delays single rounds now and then.
        """
        if not self.newest_s:
            return float("inf")
        return max(*self.newest_s, self.since_last_s) if self.fell else min(self.newest_s)

    def expected_s(self, predicted_s: float, proven: bool) -> float:
        """Return the seconds to expect of the plan's next rounds.

        Args:
            predicted_s: The predicted seconds.
            proven: Whether predictions for this plan are corrected by measured rounds of it.
        """
        needed = NEWEST if self.fell_lately else UNEXPLAINED
        slowest_s = self.whole_s[-needed:]
        if proven and len(slowest_s) == needed and min(slowest_s) > MISJUDGED * predicted_s:
            return min(slowest_s)
        return min(predicted_s, self.measured_s)

    def may_be_judged(self, dwell_rounds: int) -> bool:
        """Return whether the plan stood for `dwell_rounds`, is much slower than promised, or a link fell.

        Before its first whole round, the first plan waits: what fell is a declared rate, and new connections begin
        slowly. In `cloud-6` (seed 117) a swap after one round of 1.3 s, which was taken for 2.2 s, led to rounds that
        were 9 % longer for good.
        """
        first = not self.whole_s and self.promised_s == float("inf")
        return self.rounds >= dwell_rounds or self.broken or (self.fell and not first)

    def cost_s(self, round_s: float) -> float:
        """Return the expected seconds that another swap costs, where a round takes `round_s`."""
        return median([COST * round_s, *self.swaps_s])


def decide(
    current: Plan,
    proposed: Sequence[Plan],
    judge: PlanJudge,
    performance: PlanPerformance,
    rules: SwapRules,
    network_changed: bool,
) -> tuple[Decision, Plan]:
    """Choose the quickest of the `proposed` plans, and judge it against the current one.

    A swap must pass three tests:

    1. The predicted saving exceeds the margin, also when multiplied by the fraction that recent swaps delivered: where
       rates keep going up and down, the best plan of now is no better than another by the time that it is in force.
    2. The current plan stood for the dwell, so that it is not judged by the noise of its first rounds. There is no wait
       if its rounds are much slower than promised, a link fell, or the network itself was changed.
    3. The saving that is likely in four of five cases, over the rounds for which the known rates hold and multiplied by
       the same fraction, exceeds the cost of a swap.

    The current plan counts as no slower than its measured rounds: a link that is believed too slow makes predictions
    look bad, but not rounds. It counts as slow as its newest rounds if they all take more than MISJUDGED times the
    predicted seconds, although earlier rounds have corrected that prediction. Rounds over another network do not count.

    Args:
        current: The plan in force.
        proposed: At least one plan.
        judge: Predicts the rounds of plans under the present view.
        performance: The rounds under the current plan.
        rules: The margin and the dwell.
        network_changed: Whether another network was declared.

    Returns:
        The decision, and the quickest of the proposed plans.
    """
    predicted_s = judge.seconds(current)
    proven = judge.predictor.is_measured(current)
    current_s = predicted_s if network_changed else performance.expected_s(predicted_s, proven)
    seconds = [current_s if plan.shape() == current.shape() else judge.seconds(plan) for plan in proposed]
    proposed_s, best = min(zip(seconds, proposed, strict=True), key=lambda one: one[0])
    if best.shape() == current.shape():
        return Decision(False, "the plan in force is the best", current_s, current_s), best
    gain = 1 - proposed_s / current_s
    saves, enough = _saves(gain, rules, "round")
    if not enough:
        return Decision(False, saves, current_s, proposed_s), best
    if gain * performance.delivered <= rules.margin:
        doubt = f", but swaps brought {performance.delivered:.0%} of what they were to save"
        return Decision(False, saves + doubt, current_s, proposed_s), best
    if wait := _dwells(performance, rules, network_changed):
        return Decision(False, saves + wait, current_s, proposed_s), best
    rounds = min(performance.rounds_left, max(HOLDS_S / proposed_s, 1.0))
    surely_s = judge.sure_saving_s(current, best, current_s) * rounds * performance.delivered
    cost_s = performance.cost_s(current_s)
    if surely_s <= cost_s:
        doubt = f", but surely only {surely_s:.1f} s in {rounds:.0f} rounds, and the swap may cost {cost_s:.1f} s"
        return Decision(False, saves + doubt, current_s, proposed_s), best
    return Decision(True, saves, current_s, proposed_s, predicted_s), best


def decide_by_measure(
    measure: Measure,
    current: Plan,
    proposed: Plan,
    view: View,
    performance: PlanPerformance,
    rules: SwapRules,
    network_changed: bool,
) -> Decision:
    """Judge `proposed` against `current` by a policy's own measure, by the margin and the dwell alone."""
    current_s = measure(view, current)
    if current.shape() == proposed.shape():
        return Decision(False, "the policy would change nothing", current_s, current_s)
    proposed_s = measure(view, proposed)
    saves, enough = _saves(1 - proposed_s / current_s, rules, "step")
    wait = _dwells(performance, rules, network_changed) if enough else ""
    return Decision(enough and not wait, saves + wait, current_s, proposed_s)


def missing_edge(current: Plan, view: View) -> str:
    """Return an edge that the plan's trees or auxiliary routes use and the view lacks, or "" if there is none."""
    ways = ((route.source, *route.via, route.target) for route in current.auxiliary)
    used = chain(((source, target) for source, target, _ in current.edges()), *map(pairwise, ways))
    return next((f"{source}=>{target}" for source, target in used if (source, target) not in view.edges), "")


def _saves(gain: float, rules: SwapRules, what: str) -> tuple[str, bool]:
    """Return a sentence that says `gain` as a share of a `what` (a round), and whether it exceeds the margin."""
    enough = gain > rules.margin
    than = "more than" if enough else "not more than the"
    return f"saves {gain:.0%} of a {what}, {than} {rules.margin:.0%} wanted", enough


def _dwells(performance: PlanPerformance, rules: SwapRules, network_changed: bool) -> str:
    """Return why the plan in force may not be judged yet, or "" if it may."""
    if network_changed or performance.may_be_judged(rules.dwell_rounds):
        return ""
    return f", but the plan has stood for {performance.rounds} of {rules.dwell_rounds} rounds"
