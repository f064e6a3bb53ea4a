"""A trial of a plan: what a round takes by simulation, at a price that a planner can pay for several plans."""

from __future__ import annotations

from testbed.plan import Plan
from testbed.planning.coarse import in_chunks
from testbed.planning.cost import predict
from testbed.planning.simulate import simulate
from testbed.planning.view import View

#: Chunks that the model is cut into for a trial, at most: one on nine sites then takes some 10 ms a round.
TRIAL_CHUNKS = 128

#: Chunks times hops of a trial, 16 members: of a larger network the prediction must do.
TRIAL_HOPS = 4_000


def affordable(view: View) -> bool:
    """Whether plans for this network may be tried."""
    return 2 * (len(view.members) - 1) * TRIAL_CHUNKS <= TRIAL_HOPS


def tried_s(plan: Plan, view: View, rounds: int = 1) -> float:
    """Seconds of a round, the first or those that follow it (see `simulate`): as predicted, times what simulation adds.

    A trial has coarser chunks than the plan where the model is large, in simulation and prediction alike.
    """
    trial = in_chunks(plan, view.model_bytes, TRIAL_CHUNKS)
    predicted_s = predict(trial, view).seconds
    if not predicted_s:
        return 0.0  # a single member's
    return predict(plan, view).seconds * simulate(trial, view, rounds=rounds).seconds / predicted_s
