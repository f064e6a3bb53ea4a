"""What the controller leaves of its decisions: every view and plan, and what was decided by them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from testbed.controller.decision import Decision
from testbed.plan import Plan
from testbed.planning import BoundError, Policy, View
from testbed.planning.bound import bound
from testbed.planning.constraints import Constraints
from testbed.telemetry.estimate import Estimate
from testbed.telemetry.store import Records, write_json


class DecisionLog:
    """Writes into a run's directory `out`: `decisions.jsonl`, `estimates.jsonl`, `views/` and `plans/`.

    A decision can be made again from it: `policy` with `options` on the `view`, when the plan of epoch `last` was in
    force (none was at first), made its proposals; the adopted plan is the `choice`th of them, or, where that is null,
    one that was in force before.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._views = 0
        self._bound: tuple[Constraints, float | None] | None = None
        self._file = Records(out / "decisions.jsonl")
        self._estimates = Records(out / "estimates.jsonl")

    def store(self, plan: Plan) -> None:
        """Keep a plan that was adopted."""
        write_json(self._out / f"plans/{plan.epoch:04d}.json", plan.to_json())

    async def record(
        self,
        view: View,
        policy: Policy,
        decision: Decision,
        reason: str,
        after_round: int | None,
        last: Plan | None,
        adopted: Plan | None,
        choice: int | None,
        estimates: Mapping[str, Estimate],
    ) -> None:
        """Keep the view and what was decided by it, with the bound of the view and what was measured."""
        name = f"views/{self._views:04d}.json"
        self._views += 1
        write_json(self._out / name, view.to_json())
        self._file.append(
            {
                "at_s": view.at_s,
                "round": after_round,
                "reason": reason,
                "view": name,
                "policy": policy.name,
                "options": asdict(policy),  # type: ignore[call-overload]
                "last": last.epoch if last else None,
                "adopted": decision.adopt,
                "why": decision.why,
                "epoch": adopted.epoch if adopted else None,
                "choice": choice,
                "current_s": decision.current_s,
                "proposed_s": decision.proposed_s if decision.proposed_s != float("inf") else None,
                "bound_s": await self._bound_of(view),
                "estimates": _json(estimates),
            }
        )

    def estimated(self, at_s: float, estimates: Mapping[str, Estimate]) -> None:
        """Keep what was known of links when a round was over."""
        self._estimates.append({"at_s": at_s, "links": _json(estimates)})

    def close(self) -> None:
        """Nothing is recorded any more."""
        self._file.close()
        self._estimates.close()

    async def _bound_of(self, view: View) -> float | None:
        """The bound's seconds; solved again only when a capacity changed. None when the view has no plan."""
        limits = Constraints.of(view)
        if self._bound is None or self._bound[0] != limits:
            try:
                seconds: float | None = (await asyncio.to_thread(bound, view)).seconds
            except BoundError:
                seconds = None
            self._bound = limits, seconds
        return self._bound[1]


def _json(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, float]]:
    return {name: estimate.to_json() for name, estimate in estimates.items()}
