"""The plans that a member holds: the one in force, those that may follow it, and those that frames may still go by."""

from __future__ import annotations

import threading

from testbed.plan import Plan, PlanError
from testbed.sync.allreduce.role import Layout, RoundRole, role_in


class HeldPlans:
    """By epoch, with what `member` does under each. Any thread may call, but for `layout`: those that open rounds.

    `agreed` is the epoch that the next round goes by, `successor` the one that this member is ready to go by after it,
    `confirmed` the newest that all members are known to be ready for.
    """

    def __init__(self, member: str, first: Plan) -> None:
        self.agreed = first.epoch
        self.successor = first.epoch
        self.confirmed = first.epoch
        self._member = member
        self._guard = threading.Lock()
        self._oldest = first.epoch
        self._plans: dict[int, Plan] = {}
        self._roles: dict[tuple[int, bool], RoundRole] = {}
        self._layout: tuple[tuple[int, bool, int, int], Layout] | None = None
        self._add(first)

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._plans

    def __getitem__(self, epoch: int) -> Plan:
        return self._plans[epoch]

    def get(self, epoch: int) -> Plan | None:
        """The plan of an epoch; None when it is not held."""
        return self._plans.get(epoch)

    def role(self, epoch: int, among_all: bool) -> RoundRole:
        """What this member does in rounds among all, or inside its own group."""
        return self._roles[epoch, among_all]

    def layout(self, epoch: int, among_all: bool, elements: int, itemsize: int) -> Layout:
        """How a tensor is cut in those rounds, kept from one to the next: making it costs 1 µs a chunk."""
        of = epoch, among_all, elements, itemsize
        if self._layout is None or self._layout[0] != of:
            group = self._roles[epoch, among_all].group
            self._layout = of, Layout(group, self._plans[epoch].chunk_bytes, elements, itemsize)
        return self._layout[1]

    @property
    def in_force(self) -> Plan:
        """The plan that the next round goes by; the newest that is held once another generation is agreed on."""
        return self._plans.get(self.agreed) or self._plans[max(self._plans)]

    @property
    def newest(self) -> int:
        """The newest epoch that this member has heard of."""
        with self._guard:
            return max(*self._plans, self.successor)

    @property
    def most_bytes(self) -> int:
        """What a chunk takes at most under any of the plans."""
        with self._guard:
            return max(plan.chunk_bytes for plan in self._plans.values())

    def keep(self, plan: Plan) -> None:
        """Keep a plan beside the one in force; PlanError when it is no successor of those that are kept.

        Whichever was kept before and is not in force is no successor any more. It may be agreed on all the same, in
        the round that is on, and stays for that.
        """
        with self._guard:
            self.successor = self.confirmed = self.agreed
            if plan.members != self.in_force.members:
                raise PlanError(
                    f"the plan of epoch {plan.epoch} is for other members than the session",
                    field="members",
                    epoch=plan.epoch,
                )
            self._check_newer(plan.epoch)
            self._add(plan)

    def hold(self, epoch: int) -> None:
        """A plan that is kept can be gone by, unless a newer one is kept meanwhile."""
        with self._guard:
            if epoch == max(self._plans):
                self.successor = epoch

    def confirm(self, epoch: int) -> None:
        """All members hold the plan of an epoch; that is of no use if a newer one is kept meanwhile."""
        with self._guard:
            if epoch == max(self._plans):
                self.confirmed = epoch

    def promise(self, epoch: int) -> None:
        """This member is ready to go by `epoch`, the first of another generation; PlanError as `keep`."""
        with self._guard:
            self._check_newer(epoch)
            self.successor = epoch

    def agree(self, used: int, agreed: int) -> None:
        """A round among all that went by the epoch `used` is over: all go by `agreed` in the next."""
        with self._guard:
            self.agreed = agreed
            self._oldest = used

    def advance(self, epoch: int) -> None:
        """The next round goes by `epoch`, if that is newer than what the rounds among all agreed on."""
        with self._guard:
            self.agreed = max(self.agreed, epoch)

    def last_before(self, number: int) -> int:
        """The last round that a peer can be in while this member has begun none after `number`: the next one among all
        is its last, by the plan in force or one that took force meanwhile, of which this member may have yet to hear.
        """
        with self._guard:
            period = self.in_force.period
            newer = (plan.period - 1 for epoch, plan in self._plans.items() if epoch > self.agreed)
            return (number // period + 1) * period + sum(newer)

    def forget(self) -> int:
        """Drop plans before that of the last round among all: no frame can go by them any more. The oldest epoch that
        is left."""
        with self._guard:
            for epoch in [epoch for epoch in self._plans if epoch < self._oldest]:
                del self._plans[epoch]
                self._roles.pop((epoch, False), None)
                del self._roles[epoch, True]
            return self._oldest

    def _check_newer(self, epoch: int) -> None:
        if epoch <= max(self._plans):
            raise PlanError(
                f"epoch {epoch} is not newer than {max(self._plans)}, which is held", field="epoch", epoch=epoch
            )

    def _add(self, plan: Plan) -> None:
        self._roles[plan.epoch, True] = role_in(plan, plan.whole, self._member)
        for group in plan.groups:
            if self._member in group.members:
                self._roles[plan.epoch, False] = role_in(plan, group, self._member)
        self._plans[plan.epoch] = plan
