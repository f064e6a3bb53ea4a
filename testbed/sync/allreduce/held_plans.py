"""The plans that a member holds: the one in force, those that may follow it, and those that frames may still go by."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.plan import Plan, PlanError
from testbed.sync.allreduce.role import Role, role_in


class Plans:
    """By epoch, with what `member` does under each. No lock of its own.

    `agreed` is the epoch that the next round goes by, `successor` the one that this member is ready to go by after it,
    `confirmed` the newest that all members are known to be ready for.
    """

    def __init__(self, member: str, first: Plan) -> None:
        self.agreed = first.epoch
        self.successor = first.epoch
        self.confirmed = first.epoch
        self._member = member
        self._oldest = first.epoch
        self._plans: dict[int, Plan] = {}
        self._roles: dict[tuple[int, bool], Role] = {}
        self._add(first)

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._plans

    def __getitem__(self, epoch: int) -> Plan:
        return self._plans[epoch]

    def __iter__(self) -> Iterator[int]:
        return iter(self._plans)

    def get(self, epoch: int) -> Plan | None:
        """The plan of an epoch; None when it is not held."""
        return self._plans.get(epoch)

    def role(self, epoch: int, among_all: bool) -> Role:
        """What this member does in rounds among all, or inside its own group."""
        return self._roles[epoch, among_all]

    @property
    def in_force(self) -> Plan:
        """The plan that the next round goes by."""
        return self._plans[self.agreed]

    @property
    def newest(self) -> int:
        """The newest epoch that this member has heard of."""
        return max(*self._plans, self.successor)

    def keep(self, plan: Plan) -> None:
        """Keep a plan beside the one in force; PlanError when it is no successor of those that are kept.

        Whichever was kept before and is not in force is no successor any more. It may be agreed on all the same, in
        the round that is on, and stays for that.
        """
        self.successor = self.confirmed = self.agreed
        if plan.members != self.in_force.members:
            raise PlanError(f"the plan of epoch {plan.epoch} is for other members than the session")
        self._check_newer(plan.epoch)
        self._add(plan)

    def hold(self, plan: Plan) -> None:
        """A plan that is kept can be gone by, unless a newer one is kept meanwhile."""
        if plan.epoch == max(self._plans):
            self.successor = plan.epoch

    def confirm(self, epoch: int) -> None:
        """All members hold the plan of an epoch; that is of no use if a newer one is kept meanwhile."""
        if epoch == max(self._plans):
            self.confirmed = epoch

    def promise(self, epoch: int) -> None:
        """This member is ready to go by `epoch`, the first of another era; PlanError as `keep`."""
        self._check_newer(epoch)
        self.successor = epoch

    def agree(self, used: int, agreed: int) -> None:
        """A round among all that went by the epoch `used` is over: all go by `agreed` in the next."""
        self.agreed = agreed
        self._oldest = used

    def forget(self) -> None:
        """Drop plans before that of the last round among all: no frame can go by them any more."""
        for epoch in [epoch for epoch in self._plans if epoch < self._oldest]:
            del self._plans[epoch]
            self._roles.pop((epoch, False), None)
            del self._roles[epoch, True]

    def _check_newer(self, epoch: int) -> None:
        if epoch <= max(self._plans):
            raise PlanError(f"epoch {epoch} is not newer than {max(self._plans)}, which is held")

    def _add(self, plan: Plan) -> None:
        self._roles[plan.epoch, True] = role_in(plan, plan.whole, self._member)
        for group in plan.groups:
            if self._member in group.members:
                self._roles[plan.epoch, False] = role_in(plan, group, self._member)
        self._plans[plan.epoch] = plan
