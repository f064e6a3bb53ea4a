"""Whether another plan is worth a swap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from testbed.plan import Plan
from testbed.planning import View, predict, simulate

#: Estimates are some percent off, and a bottleneck's error is the round's: a saving of so many margins is no error.
SURE = 2.0

#: Chunks times hops of a plan that are simulated to judge it, at 50 µs each; of a larger one the fluid prediction must
#: do.
SIMULATED_HOPS = 10_000


#: Rounds that are not counted as usual yet: a change shows in so many before another plan is judged.
FRESH = 2

#: What a plan costs under a view.
Measure = Callable[[View, Plan], float]


@dataclass(frozen=True, slots=True)
class Rules:
    """`margin`: the part of the round that must be saved. `dwell_rounds`: how long a plan stands at least.

    What saves less than SURE margins must do so twice running, unless rounds take longer by as much than they did.
    """

    margin: float
    dwell_rounds: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to adopt, why or why not, and the predicted seconds of a round under either plan, or what they cost by
    the policy's own measure.

    `current_s` is None when the plan in force uses an edge that is no longer there. `promising`: it would save more
    than the margin.
    """

    adopt: bool
    why: str
    current_s: float | None
    proposed_s: float
    promising: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """How the plan in force has done: for how many rounds, how long the last one took (None before the first) and how
    long they usually did, and whether another one was `promising` when it was last judged."""

    rounds: int
    last_s: float | None = None
    promising: bool = False
    usual_s: float | None = None

    def slower(self, part: float) -> bool:
        """Whether the last round took longer than usual by more than this part of it."""
        return self.last_s is not None and self.usual_s is not None and self.last_s > self.usual_s * (1 + part)


def decide(
    current: Plan,
    proposed: Plan,
    view: View,
    standing: Standing,
    rules: Rules,
    network_changed: bool,
    measure: Measure | None = None,
) -> Decision:
    """Judge `proposed` against `current`, both under `view`.

    The dwell keeps a plan from being judged by the noise of its first rounds, and a small saving must show twice: an
    estimate that is wrong makes another plan look better, but no round longer, so when rounds are, once is enough. When
    the network itself was changed (`network_changed`) there is nothing to wait for. A plan that can't work any
    more gives way at once. What is to save something must be quicker than rounds really are, not only than the view
    says that they are: a link believed too slow makes the plan in force look bad, and the rounds don't. With a
    `measure` of the policy's, that decides instead.
    """
    now = predict(current, view)
    if now.seconds == float("inf"):
        gone = f"the plan in force uses {now.bottleneck}, which is gone"
        return Decision(True, gone, None, predict(proposed, view).seconds)
    measured = measure is not None
    if measure is None:
        simulated = max(_hops(current, view), _hops(proposed, view)) <= SIMULATED_HOPS
        measure = partial(_seconds, simulated=simulated)
    current_s = measure(view, current)
    if current.shape() == proposed.shape():
        return Decision(False, "the policy would change nothing", current_s, current_s)
    proposed_s = measure(view, proposed)
    last_s = current_s if measured or network_changed or standing.last_s is None else standing.last_s
    gain = 1 - proposed_s / min(current_s, last_s)
    saves = f"saves {gain:.0%} of a {'step' if measured else 'round'}, more than {rules.margin:.0%} wanted"
    if gain <= rules.margin:
        return Decision(False, saves.replace("more than", "not more than the"), current_s, proposed_s)
    wait = ""
    if standing.rounds < rules.dwell_rounds:
        wait = f", but the plan has stood for {standing.rounds} of {rules.dwell_rounds} rounds"
    elif gain < SURE * rules.margin and not standing.promising and not standing.slower(SURE * rules.margin):
        wait = ", but for the first time"
    adopt = network_changed or not wait
    return Decision(adopt, saves if adopt else saves + wait, current_s, proposed_s, promising=True)


def _hops(plan: Plan, view: View) -> float:
    """Chunks times hops of a round."""
    return sum(plan.trees[tree].share for _, _, tree in plan.edges()) * view.model_bytes / plan.chunk_bytes


def _seconds(view: View, plan: Plan, simulated: bool) -> float:
    """Of a round, chunk by chunk or as a fluid: two plans are compared the same way."""
    return simulate(plan, view).seconds if simulated else predict(plan, view).seconds


def usual(seconds: Sequence[float]) -> float | None:
    """How long rounds under a plan took before the last FRESH ones: their median, None when there were none."""
    before = seconds[:-FRESH]
    return median(before) if before else None
