"""Given: one plan, written out, to force a plan of one's own or to repeat another run's plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from testbed.plan import Plan, PlanError
from testbed.planning.policy import Policy, PolicyError, check_plan, make_policy, register
from testbed.planning.view import View


@register("given")
@dataclass(frozen=True)
class GivenPlan(Policy):
    """The plan in `document`; `auto` plans where members were lost or joined, so that the document no longer fits.

    A document that is not a plan raises PolicyError at once; `plan` raises it if the view lacks an edge.
    """

    #: The plan as JSON (`Plan.to_json`), such as a run's `plans/0003.json`.
    document: Mapping[str, Any] = field(default_factory=dict)

    plans_alone = False

    def __post_init__(self) -> None:
        self.written()

    @property
    def makes_groups(self) -> bool:
        """True if the document's plan has groups."""
        return bool(self.written().groups)

    def plan(self, view: View) -> Plan:
        """Return the document's plan; if the view has other members than that plan, return the policy `auto`'s plan.

        Raises:
            PolicyError: The view lacks an edge of the plan.
        """
        written = self.written()
        if set(view.names) != set(written.members):
            return make_policy("auto").plan(view)
        check_plan(self, view, written)
        return replace(written, epoch=0, members=view.names, policy=self.name)

    def check(self, view: View) -> None:
        """Raise PolicyError if the document's members are not the view's, or the view lacks an edge of the plan."""
        written = set(self.written().members)
        if strange := sorted(written ^ set(view.names)):
            raise PolicyError(
                f"given: {', '.join(strange)} must be in both the plan and the run; the run's members are "
                f"{', '.join(view.names)}",
                field="members",
                given=tuple(strange),
            )
        self.plan(view)

    def written(self) -> Plan:
        """Return the document's plan. Raises PolicyError if the document is not a plan."""
        try:
            plan = Plan.from_json(self.document)
            plan.check_codecs()
        except PlanError as error:
            text = f"given: {error}; write a plan as a run keeps it in plans/, or as GET /api/v1/plans returns it"
            raise PolicyError(text, **{"field": "document", **error.details}) from None
        return plan
