"""Whether another plan is worth a swap."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.plan import Plan
from testbed.planning import CostModel, View


@dataclass(frozen=True, slots=True)
class Rules:
    """`margin`: the part of the round that must be saved. `dwell_rounds`: how long a plan stands at least."""

    margin: float
    dwell_rounds: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to adopt, why or why not, and the predicted seconds of a round under either plan.

    `current_s` is None when the plan in force uses an edge that is no longer there.
    """

    adopt: bool
    why: str
    current_s: float | None
    proposed_s: float


def decide(current: Plan, proposed: Plan, view: View, stood: int, rules: Rules, network_changed: bool) -> Decision:
    """Judge `proposed` against `current`, which has stood for `stood` rounds, both under `view`.

    The dwell keeps a plan from being judged by the noise of its first rounds; when the network itself was changed
    (`network_changed`) there is nothing left to wait for. A plan that can't work any more gives way at once.
    """
    model = CostModel(view)
    now, then = model.predict(current), model.predict(proposed)
    current_s = None if now.seconds == float("inf") else now.seconds
    if current_s is None:
        return Decision(True, f"the plan in force uses {now.bottleneck}, which is gone", None, then.seconds)
    if current.shape() == proposed.shape():
        return Decision(False, "the policy would change nothing", current_s, then.seconds)
    gain = 1 - then.seconds / current_s
    saves = f"saves {gain:.0%} of a round, more than {rules.margin:.0%} wanted"
    if gain <= rules.margin:
        return Decision(False, saves.replace("more than", "not more than the"), current_s, then.seconds)
    if stood < rules.dwell_rounds and not network_changed:
        why = f"{saves}, but the plan has stood for {stood} of {rules.dwell_rounds} rounds"
        return Decision(False, why, current_s, then.seconds)
    return Decision(True, saves, current_s, then.seconds)
