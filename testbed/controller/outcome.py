"""What a controller says of its run: the state while it goes on, and what came of it at the end."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from testbed.controller.service import Controller

State = Literal["waiting", "running", "done", "failed"]

#: Rounds whose metrics are looked through for the newest of each: models are evaluated in some of them only.
NEWEST_ROUNDS = 50


def status(controller: Controller) -> dict[str, Any]:
    """The state in short; times are Unix seconds, rates bit/s of frames as links were measured."""
    planner = controller.planner
    last, pending, plan = controller.book.last, planner.course.pending, controller.plan
    iterations = controller.circle.iterations if controller.circle else None
    estimates = planner.knowledge.estimates(time.time())
    return {
        "state": controller.state,
        "failure": controller.failure,
        "members": list(controller.spec.members),
        "joined": sorted(controller.hellos),
        "left": sorted(controller.goodbyes),
        "passages": _passages(controller),
        "round": iterations.lowest if iterations else last.number if last else None,
        "rounds": controller.spec.rounds,
        "epoch": plan.epoch,
        "pending_epoch": pending.plan.epoch if pending else None,
        "policy": plan.policy,
        "plan": plan.to_json(),
        "round_seconds": iterations.seconds if iterations else last.seconds if last else None,
        "metrics": _newest_metrics(controller),
        "estimates": {name: estimate.to_json() for name, estimate in estimates.items()},
        "swaps": [swap.to_json() for swap in controller.swaps],
    }


def final(controller: Controller) -> dict[str, Any]:
    """What came of the run."""
    circle, complete, goodbyes = controller.circle, controller.book.complete, controller.goodbyes
    digests = {goodbye.digest for goodbye in goodbyes.values()}
    return {
        "state": controller.state,
        "failure": controller.failure,
        "rounds": circle.iterations.lowest if circle else len(complete),
        "gaps": circle.iterations.to_json() if circle else None,
        "graph_swaps": [asdict(swap) for swap in circle.regraph.swaps] if circle else [],
        "epoch": controller.plan.epoch,
        "identical": len(digests) == 1 and "" not in digests and goodbyes.keys() >= controller.members.present,
        "passages": _passages(controller),
        "lost_updates": sum(done.lost for done in complete),
        "duplicated_updates": sum(done.duplicated for done in complete),
        "members": {
            member: {
                "device": controller.hellos[member].device,
                "rounds": goodbye.rounds,
                "digest": goodbye.digest,
                "metrics": dict(goodbye.metrics),
                "error": goodbye.error,
            }
            for member, goodbye in goodbyes.items()
        },
        "swaps": [swap.to_json() for swap in controller.swaps],
    }


def _passages(controller: Controller) -> list[dict[str, Any]]:
    passages = controller.circle.passages if controller.circle else controller.members.passages
    return [asdict(passage) for passage in passages]


def _newest_metrics(controller: Controller) -> dict[str, float]:
    if controller.circle is not None:
        return controller.circle.iterations.metrics()
    metrics: dict[str, float] = {}
    for done in controller.book.complete[-NEWEST_ROUNDS:]:
        metrics.update(done.metrics())
    return metrics
