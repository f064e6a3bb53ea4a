"""Given: one plan, written out, for whoever knows better than the policies, or repeats what another run did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from testbed.plan import Plan, PlanError
from testbed.planning.policy import Policy, PolicyError, make_policy, register
from testbed.planning.view import View


@register("given")
@dataclass(frozen=True)
class GivenPlan(Policy):
    """The plan in `document`, as JSON has it (`Plan.to_json`): a run's `plans/0003.json`.

    Where members were lost or came since, it is no plan for those that there are, and `auto` plans. A document that is
    no plan is a PolicyError at once, one whose edges are not there when it is to plan.
    """

    document: Mapping[str, Any] = field(default_factory=dict)

    plans_alone = False

    def __post_init__(self) -> None:
        self._written()

    def plan(self, view: View) -> Plan:
        written = self._written()
        if set(view.names) != set(written.members):
            return make_policy("auto").plan(view)
        parties = (written.whole, *written.groups)
        for source, target, _ in (edge for party in parties for edge in party.edges()):
            if (source, target) not in view.edges:
                raise PolicyError(
                    f"given: the plan needs an edge from {source} to {target}, and there is none",
                    rule="no-edge",
                    link=f"{source}->{target}",
                )
        return replace(written, epoch=0, members=view.names, policy=self.name)

    def check(self, view: View) -> None:
        written = set(self._written().members)
        if strange := sorted(written ^ set(view.names)):
            raise PolicyError(
                f"given: {', '.join(strange)} is in the plan or in the run, and not in the other; the members are "
                f"{', '.join(view.names)}",
                field="members",
                given=tuple(strange),
            )
        self.plan(view)

    def _written(self) -> Plan:
        try:
            return Plan.from_json(self.document)
        except PlanError as error:
            raise PolicyError(
                f"given: {error}; write what a run keeps in plans/, or GET /api/v1/plans has",
                **{"field": "document", **error.details},
            ) from None
