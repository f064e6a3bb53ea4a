"""What the controller leaves of its decisions: every view, and what was decided by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from testbed.controller.replanning.conducting import TrainingAnswer
from testbed.controller.replanning.decision import Decision
from testbed.plan import Plan
from testbed.planning import BoundError, Policy, View
from testbed.planning.bound import MOST_BOUNDED, Bound, bound
from testbed.planning.constraints import Constraints
from testbed.telemetry.estimate import Estimate
from testbed.telemetry.store import Records, write_json


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision, and what it was made by: the `view` with what was measured of its links, the `policy`, the reason.

    `last` was in force (none at first), `after_round` the newest round then; `adopted` is the plan that follows it,
    the `choice`th of the policy's proposals. `correction` is the factor by which simulated rounds of `last` are
    corrected, and the standard deviation of its logarithm. `training` is what was thought of how members train, where
    that is conducted. It took `seconds` of a processor.
    """

    view: View
    policy: Policy
    decision: Decision
    reason: str
    after_round: int | None = None
    last: Plan | None = None
    adopted: Plan | None = None
    choice: int | None = None
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    correction: tuple[float, float] | None = None
    training: TrainingAnswer | None = None
    seconds: float = 0.0


class DecisionLog:
    """Writes into a run's directory `out`: `decisions.jsonl`, `estimates.jsonl`, `views/`.

    A decision can be made again from it: `policy` with `options` on the `view`, when the plan of epoch `last` was in
    force (none was at first), made its proposals; the adopted plan is the `choice`th of them, or, where that is null,
    one that was in force before.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._views = 0
        self._limits: Constraints | None = None
        self._bound: Bound | None = None
        self._file = Records(out / "decisions.jsonl")
        self._estimates = Records(out / "estimates.jsonl")

    def bound(self, view: View) -> float | None:
        """The bound's seconds; solved again only when a capacity changed. None when the view has no plan, or too many
        members."""
        if len(view.members) > MOST_BOUNDED:
            return None
        limits = Constraints.of(view)
        if self._limits != limits:
            try:
                self._bound = bound(view, self._bound)
            except BoundError:
                self._bound = None
            self._limits = limits
        return self._bound.seconds if self._bound else None

    def record(self, record: DecisionRecord, bound_s: float | None) -> None:
        """Keep a decision and the view that it was made by, with the `bound` of that."""
        name = f"views/{self._views:04d}.json"
        self._views += 1
        view, policy, decision = record.view, record.policy, record.decision
        write_json(self._out / name, view.to_json())
        self._file.append(
            {
                "at_s": view.at_s,
                "round": record.after_round,
                "reason": record.reason,
                "view": name,
                "policy": policy.name,
                "options": asdict(policy),  # type: ignore[call-overload]
                "last": record.last.epoch if record.last else None,
                "adopted": decision.adopt,
                "why": decision.why,
                "epoch": record.adopted.epoch if record.adopted else None,
                "choice": record.choice,
                "current_s": decision.current_s,
                "proposed_s": decision.proposed_s if decision.proposed_s != float("inf") else None,
                "bound_s": bound_s,
                "correction": list(record.correction) if record.correction else None,
                "considered_s": record.seconds,
                "estimates": _json(record.estimates),
                **({"training": record.training.to_json()} if record.training else {}),
            }
        )

    def estimated(self, at_s: float, estimates: Mapping[str, Estimate]) -> None:
        """Keep what was known of links when a round was over."""
        self._estimates.append({"at_s": at_s, "links": _json(estimates)})

    def close(self) -> None:
        """Nothing is recorded any more."""
        self._file.close()
        self._estimates.close()


def _json(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, float]]:
    return {name: estimate.to_json() for name, estimate in estimates.items()}
