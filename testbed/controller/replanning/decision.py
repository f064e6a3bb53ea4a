"""Whether another plan is worth a swap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from testbed.controller.replanning.plan_judge import PlanJudge
from testbed.plan import Plan
from testbed.planning import View, predict

#: Seconds for which what is known of a network is taken to hold: what a swap saves later does not count for it.
HOLDS_S = 20.0

#: What is true of a plan shows in one of so many of its newest rounds.
NEWEST = 2

#: A plan whose rounds take so many times as long as they were promised to needs no more rounds to be judged.
BROKEN = 1.5

#: A swap costs so much of a round as long as none was measured: connections begin slowly.
COST = 0.5

#: What a plan costs under a view.
Measure = Callable[[View, Plan], float]


@dataclass(frozen=True, slots=True)
class Rules:
    """`margin`: the part of the round that must be saved. `dwell_rounds`: how long a plan stands at least."""

    margin: float
    dwell_rounds: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to adopt, why or why not, and the expected seconds of a whole round under either plan, or what they cost
    by the policy's own measure.

    `current_s` is None when the plan in force uses an edge that is no longer there.
    """

    adopt: bool
    why: str
    current_s: float | None
    proposed_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """How the plan in force has done: for how many `rounds`, and how long the `newest_s` took whole (seconds, from the
    end of one to that of the next; the first after a swap is not among them). One is on for `on_s` by now. Whether a
    link `fell` in these rounds.

    `left` rounds are still to come, and swaps so far made a round longer by `swaps_s`, and brought the part `trust` of
    what they were to save. The plan was adopted since its rounds were to take `promised_s`.
    """

    rounds: int
    newest_s: tuple[float, ...] = ()
    on_s: float = 0.0
    fell: bool = False
    left: float = float("inf")
    swaps_s: tuple[float, ...] = ()
    promised_s: float = float("inf")
    trust: float = 1.0

    @property
    def broken(self) -> bool:
        """Whether rounds are much longer than was promised."""
        return bool(self.newest_s) and min(self.newest_s) > BROKEN * self.promised_s

    @property
    def slow(self) -> bool:
        """Whether the round that is on takes longer already than the newest ones did: something changed since."""
        return bool(self.newest_s) and self.on_s > max(self.newest_s)

    @property
    def longest_s(self) -> float:
        """The longest of the newest rounds and the one that is on, if a link fell; else the shortest, for single rounds
        are held up by a loss now and then. Infinite where there were none."""
        if not self.newest_s:
            return float("inf")
        return max(*self.newest_s, self.on_s) if self.fell else min(self.newest_s)

    def settled(self, dwell_rounds: int) -> bool:
        """Whether the plan may be judged: it has stood for so long, breaks what it promised, or a link fell."""
        return self.rounds >= dwell_rounds or self.broken or self.fell

    def cost_s(self, round_s: float) -> float:
        """Seconds that another swap is expected to cost."""
        return median([COST * round_s, *self.swaps_s])


def decide(
    current: Plan,
    proposed: Sequence[Plan],
    judge: PlanJudge,
    standing: Standing,
    rules: Rules,
    network_changed: bool,
) -> tuple[Decision, Plan]:
    """Choose among the `proposed` (at least one), and judge the choice against `current`.

    The dwell keeps a plan from being judged by the noise of its first rounds, unless they break what it promised or a
    link fell since. When the network itself was changed (`network_changed`) there is nothing to wait for. A saving must
    be larger than the margin, and in all but a few of the cases that may be, given what is known of links and plans, it
    must make up for the swap while it lasts. What is to save something must be quicker than rounds really are, not only
    than they are foreseen to be: a link believed too slow makes the plan in force look bad, and the rounds don't. And
    of what is foreseen to be saved, only the part counts that earlier swaps brought of theirs: on rates that go up and
    down all the while the best plan of now is no better than another by the time that it is in force.
    """
    current_s = judge.seconds(current) if network_changed else min(judge.seconds(current), standing.longest_s)
    seconds = [current_s if plan.shape() == current.shape() else judge.seconds(plan) for plan in proposed]
    proposed_s, best = min(zip(seconds, proposed, strict=True), key=lambda one: one[0])
    if best.shape() == current.shape():
        return Decision(False, "the plan in force is the best", current_s, current_s), best
    gain = 1 - proposed_s / current_s
    saves, enough = _saves(gain, rules, "round")
    if not enough:
        return Decision(False, saves, current_s, proposed_s), best
    if gain * standing.trust <= rules.margin:
        doubt = f", but swaps brought {standing.trust:.0%} of what they were to save"
        return Decision(False, saves + doubt, current_s, proposed_s), best
    if wait := _dwells(standing, rules, network_changed):
        return Decision(False, saves + wait, current_s, proposed_s), best
    rounds = min(standing.left, max(HOLDS_S / proposed_s, 1.0))
    surely_s = judge.saves(current, best, current_s) * rounds * standing.trust
    cost_s = standing.cost_s(current_s)
    if surely_s <= cost_s:
        doubt = f", but surely only {surely_s:.1f} s in {rounds:.0f} rounds, and the swap may cost {cost_s:.1f} s"
        return Decision(False, saves + doubt, current_s, proposed_s), best
    return Decision(True, saves, current_s, proposed_s), best


def decide_by(
    measure: Measure, current: Plan, proposed: Plan, view: View, standing: Standing, rules: Rules, network_changed: bool
) -> Decision:
    """Judge `proposed` against `current` by a policy's own measure, which says nothing of rounds."""
    current_s = measure(view, current)
    if current.shape() == proposed.shape():
        return Decision(False, "the policy would change nothing", current_s, current_s)
    proposed_s = measure(view, proposed)
    saves, enough = _saves(1 - proposed_s / current_s, rules, "step")
    wait = _dwells(standing, rules, network_changed) if enough else ""
    return Decision(enough and not wait, saves + wait, current_s, proposed_s)


def gone(current: Plan, view: View) -> str:
    """An edge that the plan uses and the view lacks; empty when all are there."""
    cost = predict(current, view)
    return cost.bottleneck if cost.seconds == float("inf") else ""


def _saves(gain: float, rules: Rules, what: str) -> tuple[str, bool]:
    enough = gain > rules.margin
    than = "more than" if enough else "not more than the"
    return f"saves {gain:.0%} of a {what}, {than} {rules.margin:.0%} wanted", enough


def _dwells(standing: Standing, rules: Rules, network_changed: bool) -> str:
    if network_changed or standing.settled(rules.dwell_rounds):
        return ""
    return f", but the plan has stood for {standing.rounds} of {rules.dwell_rounds} rounds"
