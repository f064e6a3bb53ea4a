"""The log of the controller's decisions, with the view behind each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import exp
from pathlib import Path

from testbed.controller.replanning.proposal import Proposal
from testbed.plan import Plan
from testbed.planning import BoundError, Policy, View
from testbed.planning.bound import MOST_BOUNDED, Bound, bound
from testbed.planning.constraints import Constraints
from testbed.telemetry.estimate import Estimate
from testbed.telemetry.store import Records, write_json

#: The size of `estimates.jsonl` after which no more estimates are recorded. With 8 members a round adds some 7 KB, so
#: that 150,000 rounds fit. The limit protects the disk.
MOST_ESTIMATE_BYTES = 1024**3

#: The size of `views/` after which decisions are recorded without their views and estimates. With 6 members a view
#: takes 13 to 17 KB, so that 60,000 decisions fit: three days of one each 5 s. The limit protects the disk.
MOST_VIEW_BYTES = 1024**3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision on a proposal, and its circumstances."""

    proposal: Proposal
    policy: Policy
    #: The request's reason, or "training" if the adopted plan changes how members train.
    reason: str
    #: The last completed round; None before the first.
    after_round: int | None = None
    #: The plan in force; None at the start.
    last: Plan | None = None
    #: The plan that follows, or None.
    adopted: Plan | None = None
    #: The estimates of the view's links.
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    @property
    def correction(self) -> tuple[float, float] | None:
        """The factor on simulated rounds of `last`, and the standard deviation of its logarithm."""
        if self.last is None:
            return None
        correction, spread = self.proposal.predictor.correction(self.last)
        return exp(correction), spread


class DecisionLog:
    """Writes `decisions.jsonl`, `estimates.jsonl` and `views/` into a run's directory.

    Each decision can be repeated from its record. The policy with its options makes its proposals from the view and
    the plan of epoch `last` (null at the start). The adopted plan is number `choice` of them, counted from 0. If
    `choice` is null, it is the first plan, an earlier plan, or one that changes how members train. `current_s` and
    `proposed_s` are seconds of whole rounds, or costs by the policy's own measure if `own_measure` is true.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        # A restarted controller appends to its decisions, whose views stay.
        views = [path for path in (out / "views").glob("*.json") if path.stem.isdecimal()]
        self._views = max((int(path.stem) for path in views), default=-1) + 1
        self._view_bytes = sum(path.stat().st_size for path in views)
        self._limits: tuple[tuple[str, ...], Constraints] | None = None
        self._bound: Bound | None = None
        self._file = Records(out / "decisions.jsonl")
        self._estimates = Records(out / "estimates.jsonl")
        self._estimate_bytes = (out / "estimates.jsonl").stat().st_size

    def bound(self, view: View) -> float | None:
        """Return the bound on a round of the view's bytes in seconds, solved again if a capacity or a member changed.

        Returns:
            The bound, or None if the view has no plan or more than MOST_BOUNDED members.
        """
        if len(view.members) > MOST_BOUNDED:
            return None
        limits = view.names, Constraints.of(view)
        if self._limits != limits:
            try:
                self._bound = bound(view, self._bound)
            except BoundError:
                self._bound = None
            self._limits = limits
        return 8 * view.model_bytes / self._bound.rate_bps if self._bound else None

    def record(self, record: DecisionRecord, bound_s: float | None) -> None:
        """Write a decision, its view, and the bound of the view; beyond MOST_VIEW_BYTES without view and estimates."""
        proposal, policy = record.proposal, record.policy
        view, decision = proposal.view, proposal.decision
        whole = self._view_bytes < MOST_VIEW_BYTES
        name = self._write_view(view) if whole else ""
        self._file.append(
            {
                "at_s": view.at_s,
                "round": record.after_round,
                "reason": record.reason,
                **({"view": name} if whole else {}),
                "policy": policy.name,
                "options": asdict(policy),  # type: ignore[call-overload]
                "last": record.last.epoch if record.last else None,
                "adopted": decision.adopt,
                "why": decision.why,
                "epoch": record.adopted.epoch if record.adopted else None,
                "choice": proposal.choice,
                "current_s": decision.current_s,
                "proposed_s": decision.proposed_s if decision.proposed_s != float("inf") else None,
                "own_measure": policy.measure is not None and record.last is not None,  # the first plan is predicted
                "bound_s": bound_s,
                "correction": record.correction,
                "considered_s": proposal.seconds,
                "estimates": _json(record.estimates) if whole else {},
                **({"training": proposal.training.to_json()} if proposal.training else {}),
            }
        )

    def _write_view(self, view: View) -> str:
        """Write a view to a file of its own, and return the file's name within the run's directory."""
        name = f"views/{self._views:04d}.json"
        write_json(self._out / name, view.to_json(), self._out)
        self._views += 1
        self._view_bytes += (self._out / name).stat().st_size
        if self._view_bytes >= MOST_VIEW_BYTES:
            log.warning(
                "views/ has reached the limit of %d bytes: later decisions are recorded without views and estimates",
                MOST_VIEW_BYTES,
            )
        return name

    def estimated(self, at_s: float, estimates: Mapping[str, Estimate]) -> None:
        """Append the estimates of links, by name, as of `at_s` (Unix time) to `estimates.jsonl`, within its limit."""
        if self._estimate_bytes >= MOST_ESTIMATE_BYTES:
            return
        self._estimate_bytes += self._estimates.append({"at_s": at_s, "links": _json(estimates)})
        if self._estimate_bytes >= MOST_ESTIMATE_BYTES:
            log.warning(
                "estimates.jsonl has reached the limit of %d bytes: later estimates of links are not recorded",
                MOST_ESTIMATE_BYTES,
            )

    def close(self) -> None:
        """Close `decisions.jsonl` and `estimates.jsonl`."""
        self._file.close()
        self._estimates.close()


def _json(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, float]]:
    return {name: estimate.to_json() for name, estimate in estimates.items()}
